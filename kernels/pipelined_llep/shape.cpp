#include "kernels/pipelined_llep/shape.h"

#include <algorithm>
#include <limits>

namespace weir {

LlepKnobs KnobsOf(const Attributes& a, int64_t tokens, int64_t top_k) {
  return {.experts = a.Int("experts"),
          .ranks = a.Int("expert_parallel", 1),
          .top_k = top_k,
          .max_tokens = a.Int("max_tokens", tokens),
          .leaves = a.Int("leaves", 16),
          .unit_rows = a.Int("unit_rows", 4096),
          .chunk_tokens = a.Int("chunk_tokens", 0),
          .max_chunks = a.Int("max_chunks", 0),
          .lambda = a.Float("llep_lambda", std::numeric_limits<double>::infinity()),
          .alpha = a.Float("llep_alpha", 1.1),
          .min_rows = a.Int("min_rows", 1),
          .max_foreign = a.Int("max_foreign", 0)};
}

DispatchShape::DispatchShape(const Attributes& attributes, const Dims& x, const Dims& ids,
                             const Dims& down)
    : n(x[0]),
      k(ids[1]),
      layer{x[1], down[2], ExpertActivation(attributes)},
      knobs(KnobsOf(attributes, n, k)),
      sizes(ChunkSizesOf(knobs)),
      rows(RowBound(knobs)),
      foreign_slots(MaxBorrowed(knobs)) {}

DispatchShape::DispatchShape(const Node& node)
    : DispatchShape(node.attributes, ToDims(node.in(0)->shape), ToDims(node.in(1)->shape),
                    ToDims(node.in(4)->shape)) {}

}  // namespace weir
