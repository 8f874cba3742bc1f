#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/plan.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"

namespace weir {

// A graph in text form, made a training graph at one launch shape and run with poisoned activations.
class TrainingHarness {
 public:
  TrainingHarness(const std::string& text, int64_t batch, int64_t sequence, const TrainingOptions& options = {},
                  std::shared_ptr<Device> device = {})
      : graph(ParseText(text)) {
    PassManager passes;
    BuildTrainingGraph(*graph, options, passes);
    SpecializeShapes(*graph, batch, sequence);
    PlaceOnHost(*graph, options, passes);
    VerifyGraph(*graph);
    plan = MakePlan(*graph, DeviceKind::kCpu);
    executor = std::make_unique<Executor>(plan, ExecutorOptions{.poison = true, .device = std::move(device)});
  }

  template <class T>
  std::vector<T> Read(const std::string& name) const {
    const Tensor tensor = executor->TensorOf(*graph->FindValue(name));
    return {tensor.data<T>(), tensor.data<T>() + tensor.elements()};
  }
  template <class T>
  void Write(const std::string& name, const std::vector<T>& values) {
    const Tensor tensor = executor->TensorOf(*graph->FindValue(name));
    std::copy(values.begin(), values.end(), tensor.data<T>());
  }
  void MicroBatch(const std::vector<int64_t>& ids, const std::vector<int64_t>& labels) {
    Write("input_ids", ids);
    Write("labels", labels);
    executor->Run(Phase::kForward);
    executor->Run(Phase::kBackward);
  }
  // One whole step on one micro-batch.
  void Step(const std::vector<int64_t>& ids, const std::vector<int64_t>& labels, double learning_rate, int64_t step) {
    const auto valid = std::count_if(labels.begin(), labels.end(), [](int64_t label) { return label >= 0; });
    Write<float>("loss_scale", {valid == 0 ? 0.0f : 1 / static_cast<float>(valid)});
    executor->Run(Phase::kBegin);
    MicroBatch(ids, labels);
    executor->Run(Phase::kNorm);
    Write<double>("learning_rate", {learning_rate});
    Write<int64_t>("step", {step});
    executor->Run(Phase::kUpdate);
  }
  double loss() const { return Read<double>("loss")[0]; }

  std::unique_ptr<Graph> graph;
  Plan plan;
  std::unique_ptr<Executor> executor;
};

using Parameters = std::map<std::string, std::vector<double>>;

// d loss / d parameter by central differences in double. Step 1e-5: truncation about 1e-10, rounding 1e-11.
inline Parameters CentralDifferences(Parameters at, const std::function<double(const Parameters&)>& loss) {
  constexpr double kStep = 1e-5;
  Parameters gradients;
  for (auto& [name, values] : at) {
    for (double& value : values) {
      const double middle = value;
      value = middle + kStep;
      const double above = loss(at);
      value = middle - kStep;
      gradients[name].push_back((above - loss(at)) / (2 * kStep));
      value = middle;
    }
  }
  return gradients;
}

// Mean over valid labels of log(sum exp(row)) - row[label].
inline double MeanCrossEntropy(const std::vector<double>& logits, const std::vector<int64_t>& labels) {
  const size_t v = logits.size() / labels.size();
  double sum = 0, valid = 0;
  for (size_t n = 0; n < labels.size(); ++n) {
    if (labels[n] < 0) continue;
    double total = 0;
    for (size_t j = 0; j < v; ++j) total += std::exp(logits[n * v + j]);
    sum += std::log(total) - logits[n * v + static_cast<size_t>(labels[n])];
    ++valid;
  }
  return valid == 0 ? 0 : sum / valid;
}

// y[n,m] = sum_k x[n,k] w[m,k]
inline std::vector<double> Project(const std::vector<double>& x, const std::vector<double>& w, size_t k) {
  const size_t n = x.size() / k, m = w.size() / k;
  std::vector<double> y(n * m);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < m; ++j) {
      for (size_t c = 0; c < k; ++c) y[i * m + j] += x[i * k + c] * w[j * k + c];
    }
  }
  return y;
}

// Deterministic values in [-1, 1], exact in float32.
inline std::vector<double> Draw(size_t count, uint32_t seed) {
  std::vector<double> values;
  uint32_t state = seed * 2654435761u + 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(static_cast<double>(state >> 16) / 32768 - 1);
  }
  return values;
}

inline std::vector<float> ToFloats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

}  // namespace weir
