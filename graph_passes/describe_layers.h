#pragma once
#include <string>

#include "graph/graph.h"

namespace weir {

// Parts of a canonical decoder layer in words (import_report.h).

// "GQA: 4 query heads over 2 key-value heads of 16; rotary of 16 channels, base 10000; window 8;
// sinks"
std::string DescribeAttention(const Node& attention);
// "Linear -> Softmax -> TopK(2) -> normalise": the ops between the gate and the experts, in order.
std::string DescribeRouter(const Graph& graph, const Node& experts);
// "8 of width 12, top-2, swiglu"
std::string DescribeExperts(const Node& experts);
// "width 12, gated by Sigmoid" of the dense MLP added to the experts' output, "" when there is
// none.
std::string DescribeShared(const Graph& graph, const Node& experts);
// "width 40" of a gated MLP ending in Linear `down` ("" when it ends none), and the value it reads.
std::string DescribeMlp(const Node& down, const Value*& input);

}  // namespace weir
