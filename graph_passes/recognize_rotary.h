#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph_passes/probe.h"

namespace weir {

// What the two operands of a rotation hold.
struct RotaryPair {
  std::vector<double> inv_freq;  // one per rotated pair of channels
  double scale = 1;
  int64_t width = 0;         // columns of the operands: inv_freq.size() or twice as many
  bool interleaved = false;  // width is twice: column c is frequency c/2, not c mod (width/2)
};

// Proves that cos[.., p, .., c] == scale * cos(float32(p * inv_freq[column])) and sin likewise,
// exactly in float32, by reading the frequencies at position 1 and evaluating both operands at two
// launch shapes. On failure `why` says what was seen.
std::optional<RotaryPair> RecognizeRotary(const LaunchConstants& constants, const Value* cos,
                                          const Value* sin, std::string& why);

// The tables [S, d/2] as values of the graph, placed at its front. Equal tables merge in
// merge_common.
struct RotaryTables {
  Value* cos = nullptr;
  Value* sin = nullptr;
};
RotaryTables MakeTables(Graph& graph, const RotaryPair& pair);
// The first S rows of baked caches [max, d/2].
RotaryTables TablesFromCaches(Graph& graph, Value* cos_cache, Value* sin_cache);

}  // namespace weir
