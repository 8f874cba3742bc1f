#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph_passes/probe.h"
#include "graph_passes/recognize_mask.h"

namespace weir {

// softmax(scale * q k^T, masked) v as plain nodes spell it, all of [batch, heads, sequence,
// channels].
struct EagerAttention {
  Value* q = nullptr;
  Value* k = nullptr;         // unless `k_transposed`
  bool k_transposed = false;  // k is [batch, heads, channels, sequence]
  Value* v = nullptr;
  Value* sinks = nullptr;  // whatever shape the graph has it in
  double scale = 1, softcap = 0;
  std::vector<MaskUse> masks;
};

// `product` is the MatMul of probabilities and v. Returns whether it matched; `why` is set when the
// nodes around the Softmax are those of attention but something does not fit.
bool MatchEagerAttention(const Node& product, const LaunchConstants& constants,
                         EagerAttention& match, std::string& why);

// The keys or values [batch, kv heads, sequence, channels] that `value` repeats `times` times per
// head.
struct Repeated {
  Value* base = nullptr;
  int64_t times = 1;
};
Repeated StripRepeat(Value* value);

}  // namespace weir
