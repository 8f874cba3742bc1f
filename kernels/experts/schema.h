#pragma once
#include <string_view>

#include "graph/gradient.h"
#include "graph/op_schema.h"

namespace weir {

// What Experts and the ops that stream it share.

void InferExperts(InferContext& c);          // output 0 and C1 to C5
void InferExpertsGradient(InferContext& c);  // all outputs
// Emits the gradient op: the inputs of the node, dy, accumulators, and `saved` behind them if
// given.
void EmitExpertsGradient(GradientContext& g, std::string_view op, Value* saved);
// `passes`: how many times the forward products.
Cost ExpertsCost(const Node& node, double passes);

}  // namespace weir
