#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "optim/training_session.h"

namespace weir {

// Loss and gradients of one step in float64: the truth that float32 is measured by.
struct Float64Step {
  double loss = 0;  // router losses included
  std::map<std::string, std::vector<double>> gradients;  // by canonical parameter
};

// Evaluates the plain training graph by the ops' own references, one element after another: for small models. Gradients
// are sums over all micro-batches. `parameters` are the canonical values by name, whole.
Float64Step RunFloat64(const Graph& canonical, const TrainingOptions& options, int64_t batch, int64_t sequence,
                       std::span<const TrainingSession::MicroBatch> micro_batches, const std::map<std::string, std::vector<float>>& parameters);

}  // namespace weir
