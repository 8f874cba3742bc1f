#include "backend/tree_reduce.h"

#include <algorithm>

#include "backend/cpu/parallel.h"
#include "graph/layout.h"
#include "graph/error.h"

namespace weir {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements worth waking a thread for

template <class T>
void AddRows(T* rows, int64_t stride, int64_t first, int64_t last, int64_t begin, int64_t end) {
  if (last - first == 1) return;
  const int64_t middle = first + (last - first) / 2;
  AddRows(rows, stride, first, middle, begin, end);
  AddRows(rows, stride, middle, last, begin, end);
  T* into = rows + first * stride;
  const T* from = rows + middle * stride;
  for (int64_t i = begin; i < end; ++i) into[i] += from[i];
}

template <class T>
void SumSmall(Communicator& communicator, std::span<T> values, const CollectiveName& name) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<T> rows(values.size() * static_cast<size_t>(communicator.size()));
  communicator.AllGather(std::as_bytes(values), std::as_writable_bytes(std::span(rows)), name);
  AddRows(rows.data(), count, 0, communicator.size(), 0, count);
  std::copy_n(rows.begin(), count, values.begin());
}

std::vector<int64_t> SliceBytes(std::span<const int64_t> slices) {
  std::vector<int64_t> bytes;
  for (size_t r = 0; r + 1 < slices.size(); ++r) {
    bytes.push_back((slices[r + 1] - slices[r]) * static_cast<int64_t>(sizeof(float)));
  }
  return bytes;
}

// One round: the r-th piece of every slice travels to its owner, who adds the ranks' versions.
class Round {
 public:
  Round(Communicator& communicator, std::span<float> data, std::span<const int64_t> slices, float* rows)
      : communicator_(communicator), data_(data), slices_(slices), rows_(rows) {}

  void Run(int64_t skip, int64_t piece, const CollectiveName& name) {
    std::vector<Communicator::Outgoing> send;
    std::vector<Communicator::Incoming> receive;
    const auto own = Piece(communicator_.rank(), skip, piece);
    const auto count = static_cast<int64_t>(own.size());
    for (int64_t j = 0; j < communicator_.size(); ++j) {
      send.push_back({j, std::as_bytes(Piece(j, skip, piece))});
      receive.push_back({j, std::as_writable_bytes(std::span(rows_ + j * count, own.size()))});
    }
    communicator_.Wait(communicator_.StartExchange(send, receive, name));
    TreeAdd(rows_, communicator_.size(), count);
    std::copy_n(rows_, count, own.begin());
  }

 private:
  std::span<float> Piece(int64_t owner, int64_t skip, int64_t piece) const {
    const auto at = static_cast<size_t>(owner);
    const int64_t begin = std::min(slices_[at] + skip, slices_[at + 1]);
    const int64_t end = std::min(begin + piece, slices_[at + 1]);
    return data_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  Communicator& communicator_;
  std::span<float> data_;
  std::span<const int64_t> slices_;
  float* rows_;
};

int64_t LongestSlice(std::span<const int64_t> slices, int64_t count, int64_t ranks, const CollectiveName& name) {
  bool valid = static_cast<int64_t>(slices.size()) == ranks + 1 && slices.front() == 0 && slices.back() == count;
  int64_t longest = 0;
  for (size_t r = 0; valid && r + 1 < slices.size(); ++r) {
    valid = slices[r] <= slices[r + 1];
    longest = std::max(longest, slices[r + 1] - slices[r]);
  }
  WEIR_CHECK(valid, ErrorCode::kInternal, name.op, " of '", name.tensor, "': slices must be ", ranks + 1,
             " ascending boundaries from 0 to ", count);
  return longest;
}

}  // namespace

std::vector<int64_t> EvenSlices(int64_t count, int64_t ranks) {
  std::vector<int64_t> slices = {0};
  for (int64_t r = 0; r < ranks; ++r) slices.push_back(ShareOf(count, ranks, r).end);
  return slices;
}

void TreeAdd(float* rows, int64_t ranks, int64_t count) {
  ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) { AddRows(rows, count, 0, ranks, begin, end); });
}

void TreeReduce(Communicator& communicator, std::span<float> data, std::span<const int64_t> slices,
                std::span<std::byte> workspace, Destination destination, const CollectiveName& name) {
  const int64_t ranks = communicator.size();
  const int64_t longest = LongestSlice(slices, static_cast<int64_t>(data.size()), ranks, name);
  const int64_t piece = static_cast<int64_t>(workspace.size() / sizeof(float)) / ranks;
  WEIR_CHECK(piece > 0, ErrorCode::kInternal, name.op, " of '", name.tensor, "': workspace of ", workspace.size(),
             " bytes holds no element for each of ", ranks, " ranks");
  if (ranks == 1) return;
  Round round(communicator, data, slices, reinterpret_cast<float*>(workspace.data()));
  for (int64_t skip = 0; skip < longest; skip += piece) round.Run(skip, piece, name);
  if (destination == Destination::kOwners) return;
  const auto own = static_cast<size_t>(communicator.rank());
  const auto mine = data.subspan(static_cast<size_t>(slices[own]), static_cast<size_t>(slices[own + 1] - slices[own]));
  communicator.AllGatherV(std::as_bytes(mine), std::as_writable_bytes(data), SliceBytes(slices), name);
}

void SumOverRanks(Communicator& communicator, std::span<double> values, const CollectiveName& name) {
  SumSmall(communicator, values, name);
}

void SumOverRanks(Communicator& communicator, std::span<int64_t> values, const CollectiveName& name) {
  SumSmall(communicator, values, name);
}

}  // namespace weir
