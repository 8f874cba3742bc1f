#pragma once
#include <optional>

#include "graph/gradient.h"

namespace weir {

// Sums `gradient` over the axes along which a tensor shaped like `input` was broadcast.
Value* ReduceToShape(Builder& builder, Value* gradient, const Value& input);
// The value of a one-element float or integer constant, or nullopt.
std::optional<double> ConstantScalar(const Value* value);

// Gradients of the ops of this folder; each emits nothing when output 0 has no gradient.
void UnaryGradient(GradientContext& g);  // dx = dy * f'(x) in one node
void FlatGradient(GradientContext& g);   // Floor, Ceil, Round, Sign: zero, so nothing is added
void NegGradient(GradientContext& g);
void ExpGradient(GradientContext& g);  // dx = dy * y
void AddGradient(GradientContext& g);  // also Sum
void SubGradient(GradientContext& g);
void MulGradient(GradientContext& g);
void DivGradient(GradientContext& g);
void PowGradient(GradientContext& g);
void ModGradient(GradientContext& g);  // of the dividend: the quotient is a constant
void MeanGradient(GradientContext& g);
void ExtremeGradient(GradientContext& g);  // Min, Max: to the first input that equals the result
void WhereGradient(GradientContext& g);
void ClipGradient(GradientContext& g);

}  // namespace weir
