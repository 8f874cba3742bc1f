#pragma once
#include <memory>
#include <string>

#include "graph/graph.h"

namespace weir {

// ONNX-style text of a graph:
//   graph name (int64[batch,sequence] input_ids) => (float[batch,sequence,307] logits)
//   parameter float[307,64] model.embed_tokens.weight
//   constant int64[2] shape = {0, -1}
//   {
//     y = RmsNorm<epsilon = 1e-05>(x, gamma)
//     a, "" = ai.onnx::Op(...)      # domain printed only where the name is ambiguous
//   }
// Constants up to 16 elements print their values, larger ones a 64-bit hash. Floats print as the shortest
// decimal that reads back exactly.
std::string ToText(const Graph& graph);

// As ToText, with nodes in a depth-first order from the outputs and intermediates renumbered %0, %1 ...,
// constants inlined by value: equal graphs give equal bytes whatever their history.
std::string CanonicalText(const Graph& graph);

// Reads what ToText wrote (golden tests); constants must carry their values and may stand where they are
// used: Reshape(x, int64[2]{0, -1}). Shapes of intermediates are inferred. Throws InvalidModel with line and column.
std::unique_ptr<Graph> ParseText(const std::string& text);

}  // namespace weir
