#pragma once
#include <span>
#include <string>
#include <vector>

#include "optim/training_session.h"
#include "optim/verify.h"

namespace weir {

struct TwinOptions {
  TrainingOptions streamed;  // with the knobs under test; its layout is that of both, the head's ranks apart
  int64_t batch = 2, sequence = 33, steps = 3;  // rows of a rank's micro-batch; with others where ranks share sequences
  uint64_t seed = 0;         // of the tokens, when none are given, and of absent weights
  std::vector<int64_t> input_ids, labels;  // [ranks / context_parallel * batch, sequence] of every step; empty: random, every seventh label ignored
  std::vector<float> weights;              // of the given labels; empty: with streamed.token_weights, from 0 to 2 in turn
  DeviceKind device = DeviceKind::kCpu;
  bool float64 = true;
  double loss_tolerance = 1e-6, gradient_tolerance = 1e-5;  // of the distance from float64
};

// How many elements differ in their bits, -0 and NaN included; by how much at most is told in the measure.
Comparison CompareBits(const std::string& name, std::span<const float> got, std::span<const float> want);

// The same options with nothing streamed, recomputed or offloaded: the twin.
TrainingOptions TwinOf(const TrainingOptions& streamed);

// Trains the twin and the streamed graph side by side, from the same weights, on the same data, one micro-batch a rank
// and step. Compares bits: losses and norms, and by parameter the last gradients, then the parameters. With `float64`,
// also the first step's loss and gradients of the streamed run with a float64 run of the same sums. Ranks are threads.
std::vector<Comparison> CompareTwin(const Graph& canonical, const TwinOptions& options);

}  // namespace weir
