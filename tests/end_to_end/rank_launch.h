#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "optim/training_session.h"

namespace weir {

// A family's export, its stored batch and what PyTorch made of it.
struct StoredBatch {
  std::unique_ptr<Graph> graph;
  NamedTensors reference;
  std::vector<int64_t> ids, labels;
  std::vector<float> weights = {};  // of the labels, where the batch has them
  int64_t rows = 0, length = 0;
  double loss = 0;
};
const StoredBatch& Stored(const std::string& family, const std::string& file = "batch8");

// Steps over the stored batch. Ranks are threads; on GPUs processes, of a test that began with WEIR_ON_GPUS.
struct Launch {
  std::string family = "mixtral";
  int64_t world = 1, expert_parallel = 1, context_parallel = 1, steps = 3;
  std::optional<StreamDispatchOptions> stream = {};
  int64_t leaves = 16, unit_rows = 4096;
  int64_t micro_batches = 1;  // the m-th has the labels turned by m
  int64_t packed = 1;         // stored rows that share a row, each a document of its own
  std::string file = "batch8";
  std::function<float(int64_t)> weight_of = {};  // of a stored position's label; none: those stored, or no weights
  std::function<void(TrainingOptions&)> knobs = {};
  std::function<void(Graph&)> edit = {};  // of the canonical graph: another model, which the reference knows nothing of
  DeviceKind device = DeviceKind::kCpu;
  std::set<std::string> disabled = {};  // passes
};

// What every rank agrees on after the steps: losses, the last gradients and the parameters, whole.
struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> gradients, parameters;
  int64_t arena_bytes = 0;
};
// Fails where ranks disagree.
Outcome RunLaunch(const Launch& launch);

void ExpectSame(const Outcome& got, const Outcome& want, const std::string& what);
// PyTorch's: the loss within 1e-6, each gradient within 1e-5 in relative L2.
void ExpectReference(const Outcome& got, const std::string& family, const std::string& file = "batch8");

// |got - expected| / |expected|, Euclidean norms in double.
double RelativeL2(const std::vector<float>& got, const std::vector<float>& expected);

}  // namespace weir
