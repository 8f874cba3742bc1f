#include <algorithm>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/cross_entropy/labels.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/cross_entropy/token_weights.h"

namespace weir {
namespace {

void LaunchCrossEntropy(KernelContext& c) {
  const int64_t n = c.inputs[1].elements(), vocabulary = c.inputs[0].dims.back();
  const int64_t ignore_index = c.attributes().Int("ignore_index", -100);
  const float* logits = c.inputs[0].data<float>();
  const int64_t* labels = c.inputs[1].data<int64_t>();
  const TokenWeights<float> weights{c.has(3) ? c.inputs[3].data<float>() : nullptr};
  const bool saved = c.outputs.size() > 1 && c.outputs[1];
  float* lse = saved ? c.outputs[1].data<float>() : reinterpret_cast<float*>(c.workspace.data());
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      LogSum sum;
      sum.Add(logits + i * vocabulary, vocabulary);
      lse[i] = sum.Value();
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!LabelCounts(labels[i], i, vocabulary, ignore_index) || weights[i] == 0) continue;
    const double loss = static_cast<double>(lse[i]) - static_cast<double>(logits[i * vocabulary + labels[i]]);
    sum += static_cast<double>(weights[i]) * loss;
  }
  *c.outputs[0].data<double>() = sum * static_cast<double>(*c.inputs[2].data<float>());
}

int64_t CrossEntropyWorkspace(const Node& node) {
  return node.out(1) != nullptr ? 0
                                : BytesOf(DType::kFloat32, NumElements(ToDims(node.in(1)->shape)));
}

// In place is fine: a row's label and lse are read before the row is written, and no other row's.
void LaunchCrossEntropyGradient(KernelContext& c) {
  const int64_t n = c.inputs[1].elements(), vocabulary = c.inputs[0].dims.back();
  const int64_t ignore_index = c.attributes().Int("ignore_index", -100);
  const float *logits = c.inputs[0].data<float>(), *lse = c.inputs[2].data<float>();
  const int64_t* labels = c.inputs[1].data<int64_t>();
  const float factor = *c.inputs[3].data<float>() * *c.inputs[4].data<float>();
  const TokenWeights<float> weights{c.has(5) ? c.inputs[5].data<float>() : nullptr};
  float* dlogits = c.outputs[0].data<float>();
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t label = labels[i];
      float* row = dlogits + i * vocabulary;
      if (!LabelCounts(label, i, vocabulary, ignore_index) || weights[i] == 0) {
        std::fill_n(row, vocabulary, 0.0f);
        continue;
      }
      LogitsGradient(logits + i * vocabulary, vocabulary, label, lse[i], factor * weights[i], row);
    }
  });
}

}  // namespace

const Kernel& CrossEntropyCpuKernel() {
  static const Kernel kernel{.launch = LaunchCrossEntropy,
                             .workspace_bytes = CrossEntropyWorkspace};
  return kernel;
}

const Kernel& CrossEntropyGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchCrossEntropyGradient};
  return kernel;
}

}  // namespace weir
