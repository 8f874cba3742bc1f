#pragma once
#include "backend/kernel.h"

namespace weir {

// What one rank of `ranks` holds of `heads` heads: an equal run of them, or, with fewer heads than ranks, one
// that `replicas` consecutive ranks hold.
struct HeadShare {
  int64_t ranks, heads;

  bool possible() const { return heads > 0 && (heads % ranks == 0 || ranks % heads == 0); }
  int64_t held() const { return heads < ranks ? 1 : heads / ranks; }
  int64_t replicas() const { return held() * ranks / heads; }
  int64_t First(int64_t member) const { return member * heads / ranks; }
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
