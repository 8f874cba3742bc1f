#pragma once
#include "backend/kernel.h"
#include "kernels/common/row_share.h"

namespace weir {

// What one rank of `ranks` holds of `heads` heads. `sharing` consecutive ranks hold the same: an equal run of heads for
// each such group, or, with fewer heads than groups, one that several groups hold; `replicas` consecutive ranks in all.
struct HeadShare {
  int64_t ranks, heads, sharing = 1;

  int64_t groups() const { return ranks / sharing; }
  bool possible() const {
    return heads > 0 && sharing > 0 && ranks % sharing == 0 && (heads % groups() == 0 || groups() % heads == 0);
  }
  int64_t held() const { return heads < groups() ? 1 : heads / groups(); }
  int64_t replicas() const { return held() * ranks / heads; }
  int64_t First(int64_t member) const { return member / sharing * heads / groups(); }
};

// Which rows of a sequence go where: all of them to every rank that holds the head, or dealt to the `sharing` that do,
// each its RowShare. A rank's part is one block, or the two halves that a run is made of.
struct RowDeal {
  HeadShare heads;
  bool dealt;
  int64_t tokens;  // of a rank's part

  int64_t blocks() const { return dealt ? 2 : 1; }
  int64_t block_tokens() const { return tokens / blocks(); }
  int64_t rows() const { return tokens * (dealt ? heads.groups() : heads.ranks); }  // that a rank holds of its heads
  // Whether `member` holds that block of `owner`'s part, and from which of its rows on.
  bool Holds(int64_t member, int64_t owner, int64_t block) const {
    return !dealt || IsOneOf(RowShare{heads.sharing, member % heads.sharing}, Run(owner, block));
  }
  int64_t FirstRow(int64_t owner, int64_t block) const {
    if (!dealt) return owner * tokens;
    const int64_t groups = heads.groups(), in_run = (2 * owner + block) % groups;
    return ((Run(owner, block) < heads.sharing ? 0 : groups) + in_run) * block_tokens();
  }

 private:
  int64_t Run(int64_t owner, int64_t block) const { return (2 * owner + block) / heads.groups(); }
  static bool IsOneOf(const RowShare& share, int64_t run) { return run == share.Run(0) || run == share.Run(1); }
};

// to row i = sum over r < replicas of row i of from + r * replica_stride, added in order in float32 and rounded
// once; one replica is copied. Strides and width in bytes.
struct HeadRows {
  std::byte* to;
  int64_t to_stride;
  const std::byte* from;
  int64_t from_stride;
  int64_t rows, width;
  int64_t replicas = 1, replica_stride = 0;
};
using MoveHeadRows = void (*)(KernelContext&, const HeadRows&);

// The two ops over a device's way to move rows. Rows travel `piece` tokens at a time through two slots of the
// workspace, so that one piece is packed or unpacked while another is on its way; the other end of a transfer is the
// tensor itself.
void RunSequenceToHeads(KernelContext& context, MoveHeadRows move);
void RunHeadsToSequence(KernelContext& context, MoveHeadRows move);
int64_t HeadExchangeWorkspace(const Node& node);

}  // namespace weir
