#include "backend/communicator.h"

#include "graph/error.h"

namespace weir {
namespace {

void CheckCounts(const Communicator& communicator, std::span<const int64_t> counts, size_t bytes, const char* what,
                 const CollectiveName& name) {
  WEIR_CHECK(counts.size() == static_cast<size_t>(communicator.size()), ErrorCode::kInternal, name.op, " of '",
             name.tensor, "': ", counts.size(), " ", what, " counts for ", communicator.size(), " ranks");
  int64_t sum = 0;
  for (const int64_t count : counts) {
    WEIR_CHECK(count >= 0, ErrorCode::kInternal, name.op, " of '", name.tensor, "': a ", what, " count is ", count);
    sum += count;
  }
  WEIR_CHECK(sum == static_cast<int64_t>(bytes), ErrorCode::kInternal, name.op, " of '", name.tensor, "': ", what,
             " counts sum to ", sum, " bytes, the buffer has ", bytes);
}

// One entry per rank from consecutive parts of `bytes`.
template <class Entry, class Byte>
std::vector<Entry> Split(std::span<Byte> bytes, std::span<const int64_t> counts) {
  std::vector<Entry> entries;
  size_t offset = 0;
  for (size_t j = 0; j < counts.size(); ++j) {
    const auto count = static_cast<size_t>(counts[j]);
    entries.push_back({static_cast<int64_t>(j), bytes.subspan(offset, count)});
    offset += count;
  }
  return entries;
}

}  // namespace

Communicator::Ticket Communicator::StartAllToAllV(std::span<const std::byte> send, std::span<const int64_t> send_bytes,
                                                  std::span<std::byte> receive, std::span<const int64_t> receive_bytes,
                                                  const CollectiveName& name) {
  CheckCounts(*this, send_bytes, send.size(), "send", name);
  CheckCounts(*this, receive_bytes, receive.size(), "receive", name);
  return StartExchange(Split<Outgoing>(send, send_bytes), Split<Incoming>(receive, receive_bytes), name);
}

Communicator::Ticket Communicator::StartAllGatherV(std::span<const std::byte> send, std::span<std::byte> receive,
                                                   std::span<const int64_t> receive_bytes, const CollectiveName& name) {
  CheckCounts(*this, receive_bytes, receive.size(), "receive", name);
  const int64_t own = receive_bytes[static_cast<size_t>(rank())];
  WEIR_CHECK(own == static_cast<int64_t>(send.size()), ErrorCode::kInternal, name.op, " of '", name.tensor,
             "': this rank sends ", send.size(), " bytes, its receive count says ", own);
  std::vector<Outgoing> outgoing;
  for (int64_t j = 0; j < size(); ++j) outgoing.push_back({j, send});
  return StartExchange(outgoing, Split<Incoming>(receive, receive_bytes), name);
}

void Communicator::AllGather(std::span<const std::byte> send, std::span<std::byte> receive, const CollectiveName& name) {
  const std::vector<int64_t> counts(static_cast<size_t>(size()), static_cast<int64_t>(send.size()));
  AllGatherV(send, receive, counts, name);
}

Communicator::Ticket Communicator::StartBroadcast(int64_t root, std::span<std::byte> bytes, const CollectiveName& name) {
  WEIR_CHECK(root >= 0 && root < size(), ErrorCode::kInternal, name.op, " of '", name.tensor, "': root ", root, " of ",
             size(), " ranks");
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  if (rank() == root) {
    for (int64_t j = 0; j < size(); ++j) {
      if (j != root) outgoing.push_back({j, bytes});
    }
  } else {
    incoming.push_back({root, bytes});
  }
  return StartExchange(outgoing, incoming, name);
}

void Communicator::Barrier(const CollectiveName& name) { AllGather({}, {}, name); }

}  // namespace weir
