#pragma once
#include "graph/gradient.h"

namespace weir {

// Gradients of the reductions; max and min share it equally among equal extremes.
void ReduceSumGradient(GradientContext& g);
void ReduceMeanGradient(GradientContext& g);
void ReduceExtremeGradient(GradientContext& g);
void ReduceL2Gradient(GradientContext& g);
void ReduceSumSquareGradient(GradientContext& g);
void ReduceLogSumExpGradient(GradientContext& g);

}  // namespace weir
