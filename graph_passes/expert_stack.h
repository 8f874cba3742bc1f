#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph_passes/experts_formula.h"

namespace weir {

// The matrices (or biases) of one projection, by expert: `tensors[e]` is an Expr::kTensor.
struct ExpertTensors {
  std::vector<ExprId> tensors;
  bool bias = false;
};

// A canonical parameter of a layer's experts, not made yet.
struct ExpertStack {
  Dims dims;  // [E, rows, columns], or [E, rows] for biases
  std::vector<ParameterPiece> pieces;
  std::vector<Value*> sources;  // of each piece
};

// Stacks projections along the rows (gate, then up). `interleaved`: the one projection holds gate
// and up rows by turns. Either one stack of rank 3 or one tensor per expert. nullopt with the
// reason in `why` when the tensors are no initializers or do not fit. Changes nothing.
std::optional<ExpertStack> PlanStack(const ExprPool& pool,
                                     const std::vector<ExpertTensors>& projections,
                                     bool interleaved, std::string& why);
// Makes the parameter.
Value* MakeStack(Graph& graph, ExpertStack stack);

}  // namespace weir
