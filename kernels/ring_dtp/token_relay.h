#pragma once
#include <array>
#include <string_view>
#include <vector>

#include "backend/communicator.h"
#include "kernels/ring_dtp/sizes.h"

namespace weir {

// Tokens travel past the weight: the blocks of all members' tokens, in the order of members, pass the holders of the
// vocabulary one behind the other. Holder p works on block i in step i + p, so all holders work at once but for the first and
// last P-1 steps. What a block's own rank sends to each holder (`sent`) comes while the step before is at work; what
// holders hand on (`carried`) is sums over the vocabulary from column 0, and goes home from the last one. So every
// sum keeps its order.
class TokenRelay {
 public:
  struct Piece {
    int64_t source, row, rows;  // tokens [row, row + rows) of member `source`
    bool last;                  // of its source
  };
  static constexpr size_t kMostSent = 4;
  struct Pass {
    // Rows of this rank's tokens, of so many bytes each, read in place; other ranks' arrive in two blocks each.
    struct Sent {
      const std::byte* own;
      std::byte* buffers;
      int64_t row_bytes;
    };
    std::array<Sent, kMostSent> sent;
    // Two blocks that are worked on in turn; this rank's come back to `home`, block behind block.
    std::byte *carried, *home;
    int64_t carried_row_bytes;
  };

  // `tokens`: of each member. Every member has at least one block, of no rows where it has no tokens.
  TokenRelay(const HeadSizes& sizes, const std::vector<int64_t>& tokens, Communicator& group, std::string_view weight);

  // work(piece, sent, carried): on one block; `carried` is without content at the first holder.
  void Run(const Pass& pass, const auto& work) {
    std::vector<Communicator::Ticket> arriving = Send(pass, 0);
    for (int64_t step = 0; step < steps(); ++step) {
      for (auto& ticket : arriving) group_.Wait(std::move(ticket));
      arriving = Send(pass, step + 1);
      if (const Piece* piece = At(step, group_.rank())) {
        std::array<const std::byte*, kMostSent> sent;
        for (size_t i = 0; i < kMostSent; ++i) sent[i] = Arrived(pass.sent[i], *piece, step);
        work(*piece, sent, Carried(pass, step));
      }
      HandOn(pass, step);
    }
  }

 private:
  int64_t steps() const { return std::ssize(pieces_) + size_.ranks - 1; }
  // What `member` works on in a step; nullptr: nothing.
  const Piece* At(int64_t step, int64_t member) const;
  std::byte* Carried(const Pass& pass, int64_t step) const { return pass.carried + step % 2 * size_.block * pass.carried_row_bytes; }
  std::byte* Buffer(const Pass::Sent& sent, int64_t step) const { return sent.buffers + step % 2 * size_.block * sent.row_bytes; }
  const std::byte* Arrived(const Pass::Sent& sent, const Piece& piece, int64_t step) const;
  // Starts what `step` works on, on its way.
  std::vector<Communicator::Ticket> Send(const Pass& pass, int64_t step);
  void HandOn(const Pass& pass, int64_t step);

  HeadSizes size_;
  Communicator& group_;
  std::string_view weight_;
  std::vector<Piece> pieces_;
};

}  // namespace weir
