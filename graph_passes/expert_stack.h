#pragma once
#include <string>
#include <vector>

#include "graph_passes/experts_formula.h"

namespace weir {

// The matrices (or biases) of one projection, by expert: `tensors[e]` is an Expr::kTensor.
struct ExpertTensors {
  std::vector<ExprId> tensors;
  bool bias = false;
};

// Assembles the canonical parameter of a layer's experts, [E, rows, columns] (biases [E, rows]), from
// projections stacked along its rows (gate, then up). `interleaved`: the one projection holds gate and
// up rows by turns. Either one stack of rank 3 or one tensor per expert. Returns nullptr with the reason
// in `why` when the tensors are no initializers or do not fit.
Value* StackExperts(Graph& graph, const ExprPool& pool, const std::vector<ExpertTensors>& projections,
                    bool interleaved, std::string& why);

}  // namespace weir
