#pragma once
#include "graph/graph.h"
#include "kernels/experts/expert_rows.h"
#include "kernels/llep/plan.h"

namespace weir {

// The knobs that PipelinedLlep's attributes spell out, for x [N,H] and ids [N,K].
LlepKnobs KnobsOf(const Attributes& attributes, int64_t tokens, int64_t top_k);

struct DispatchShape {
  int64_t n, k;  // of this rank
  ExpertLayer layer;
  LlepKnobs knobs;
  ChunkSizes sizes;
  int64_t rows;           // most rows that this rank computes per chunk
  int64_t foreign_slots;  // most experts that it borrows

  DispatchShape(const Attributes& attributes, const Dims& x, const Dims& ids, const Dims& down);
  explicit DispatchShape(const Node& node);

  int64_t home_rows() const { return k * sizes.tokens; }  // most of this rank's routes per chunk
  bool distributed() const { return knobs.ranks > 1; }
  int64_t counts() const { return knobs.ranks * knobs.leaves * knobs.experts; }
};

}  // namespace weir
