#include "kernels/cross_entropy/cuda.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/cross_entropy/cuda_labels.h"
#include "kernels/cross_entropy/labels.h"

namespace weir {

void CheckLabelsOnDevice(KernelContext& c, const Tensor& labels, int64_t vocabulary, int64_t* bad) {
  const int64_t count = labels.elements(), ignore_index = c.attributes().Int("ignore_index", -100);
  if (count == 0) return;
  CUstream_st* stream = CudaQueue(c).stream;
  const auto download = [&](int64_t* to, const int64_t* from) {
    CheckCuda(cudaMemcpyAsync(to, from, sizeof(int64_t), cudaMemcpyDeviceToHost, stream),
              "checking labels");
    CheckCuda(cudaStreamSynchronize(stream), "checking labels");
  };
  CheckCuda(cudaMemsetAsync(bad, 0x7f, sizeof(int64_t), stream), "checking labels");
  cuda::FindBadLabel(labels.data<int64_t>(), count, vocabulary, ignore_index, bad, stream);
  int64_t position = 0, label = 0;
  download(&position, bad);
  if (position >= count) return;
  download(&label, labels.data<int64_t>() + position);
  LabelCounts(label, position, vocabulary, ignore_index);
}

namespace {

struct Buffers {
  int64_t* bad;
  cuda::TokenSums sums;
  float* lse;
  double* terms;
  Buffers(int64_t tokens, bool saved, WorkspaceLayout& layout)
      : bad(layout.Take<int64_t>(1)),
        sums{layout.Take<float>(tokens), layout.Take<float>(tokens), layout.Take<float>(tokens)},
        lse(saved ? nullptr : layout.Take<float>(tokens)),
        terms(layout.Take<double>(tokens)) {}
};

int64_t CrossEntropyWorkspace(const Node& node) {
  WorkspaceLayout layout(nullptr);
  Buffers(NumElements(ToDims(node.in(1)->shape)), node.out(1) != nullptr, layout);
  return layout.bytes();
}

cuda::LogitStrip WholeRows(const KernelContext& c) {
  const Tensor& logits = c.inputs[0];
  const int64_t vocabulary = logits.dims.back();
  return {.logits = logits.bytes,
          .dtype = logits.dtype,
          .rows = c.inputs[1].elements(),
          .first = 0,
          .width = vocabulary,
          .stride = vocabulary,
          .labels = c.inputs[1].data<int64_t>()};
}

void LaunchCrossEntropy(KernelContext& c) {
  const cuda::LogitStrip strip = WholeRows(c);
  const bool saved = c.outputs.size() > 1 && c.outputs[1];
  WorkspaceLayout layout(c.workspace.data());
  const Buffers b(strip.rows, saved, layout);
  CheckLabelsOnDevice(c, c.inputs[1], strip.width, b.bad);
  CUstream_st* stream = CudaQueue(c).stream;
  cuda::AddLogits(strip, b.sums, stream);
  cuda::FinishLogSum(b.sums,
                     {.labels = strip.labels,
                      .weights = c.has(3) ? c.inputs[3].data<float>() : nullptr,
                      .ignore_index = c.attributes().Int("ignore_index", -100)},
                     strip.rows, saved ? c.outputs[1].data<float>() : b.lse, b.terms, stream);
  cuda::SumLoss(b.terms, strip.rows, c.inputs[2].data<float>(), c.outputs[0].data<double>(),
                stream);
}

void LaunchCrossEntropyGradient(KernelContext& c) {
  cuda::LogitsGradient(WholeRows(c),
                       {.lse = c.inputs[2].data<float>(),
                        .scale = c.inputs[3].data<float>(),
                        .dloss = c.inputs[4].data<float>(),
                        .weights = c.has(5) ? c.inputs[5].data<float>() : nullptr,
                        .ignore_index = c.attributes().Int("ignore_index", -100),
                        .out = c.outputs[0].bytes},
                       CudaQueue(c).stream);
}

}  // namespace

const Kernel& CrossEntropyCudaKernel() {
  static const Kernel kernel{.launch = LaunchCrossEntropy,
                             .workspace_bytes = CrossEntropyWorkspace};
  return kernel;
}

const Kernel& CrossEntropyGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchCrossEntropyGradient};
  return kernel;
}

}  // namespace weir
