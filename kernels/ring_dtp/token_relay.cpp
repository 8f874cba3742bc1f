#include "kernels/ring_dtp/token_relay.h"

#include <algorithm>

#include "graph/error.h"

namespace weir {
namespace {

std::span<const std::byte> Bytes(const std::byte* data, int64_t bytes) { return {data, static_cast<size_t>(bytes)}; }
std::span<std::byte> Bytes(std::byte* data, int64_t bytes) { return {data, static_cast<size_t>(bytes)}; }

}  // namespace

TokenRelay::TokenRelay(const HeadSizes& sizes, const std::vector<int64_t>& tokens, Communicator& group, std::string_view weight)
    : size_(sizes), group_(group), weight_(weight) {
  for (int64_t source = 0; source < std::ssize(tokens); ++source) {
    const int64_t all = tokens[static_cast<size_t>(source)];
    for (int64_t row = 0; row == 0 || row < all; row += size_.block) {
      pieces_.push_back({source, row, std::min(size_.block, all - row), row + size_.block >= all});
    }
  }
}

const TokenRelay::Piece* TokenRelay::At(int64_t step, int64_t member) const {
  const int64_t piece = step - member;
  return piece >= 0 && piece < std::ssize(pieces_) ? &pieces_[static_cast<size_t>(piece)] : nullptr;
}

const std::byte* TokenRelay::Arrived(const Pass::Sent& sent, const Piece& piece, int64_t step) const {
  return piece.source == group_.rank() ? sent.own + piece.row * sent.row_bytes : Buffer(sent, step);
}

std::vector<Communicator::Ticket> TokenRelay::Send(const Pass& pass, int64_t step) {
  std::vector<Communicator::Ticket> tickets;
  if (step >= steps()) return tickets;
  const int64_t self = group_.rank();
  for (const Pass::Sent& sent : pass.sent) {
    if (sent.row_bytes == 0) continue;
    std::vector<Communicator::Outgoing> send;
    std::vector<Communicator::Incoming> receive;
    for (int64_t member = 0; member < size_.ranks; ++member) {
      const Piece* piece = At(step, member);
      if (piece == nullptr || (piece->source == self) == (member == self)) continue;  // read in place, or between others
      const int64_t bytes = piece->rows * sent.row_bytes;
      if (member == self) {
        receive.push_back({piece->source, Bytes(Buffer(sent, step), bytes)});
      } else {
        send.push_back({member, Bytes(sent.own + piece->row * sent.row_bytes, bytes)});
      }
    }
    tickets.push_back(group_.StartExchange(send, receive, {"RingDtp tokens", weight_}));
  }
  return tickets;
}

// To the next holder, or home from the last one.
void TokenRelay::HandOn(const Pass& pass, int64_t step) {
  if (pass.carried_row_bytes == 0) return;
  std::vector<Communicator::Outgoing> send;
  std::vector<Communicator::Incoming> receive;
  const int64_t self = group_.rank(), last = size_.ranks - 1, row_bytes = pass.carried_row_bytes;
  if (const Piece* piece = At(step, self)) {
    send.push_back({self == last ? piece->source : self + 1, Bytes(Carried(pass, step), piece->rows * row_bytes)});
  }
  if (const Piece* next = self > 0 ? At(step + 1, self) : nullptr) {
    receive.push_back({self - 1, Bytes(Carried(pass, step + 1), next->rows * row_bytes)});
  }
  if (const Piece* done = At(step, last); done != nullptr && done->source == self) {
    receive.push_back({last, Bytes(pass.home + done->row * row_bytes, done->rows * row_bytes)});
  }
  group_.Wait(group_.StartExchange(send, receive, {"RingDtp sums", weight_}));
}

}  // namespace weir
