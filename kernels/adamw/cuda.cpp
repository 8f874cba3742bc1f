#include "kernels/adamw/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/adamw/bucket_stream.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

// Of `count` elements from `offset` on.
void Update(KernelContext& c, int64_t offset, int64_t count, const StateParts& state) {
  const Attributes& a = c.attributes();
  const cuda::AdamWAttributes attributes{.beta1 = a.Float("beta1", 0.9),
                                         .beta2 = a.Float("beta2", 0.999),
                                         .epsilon = a.Float("epsilon", 1e-8),
                                         .weight_decay = a.Float("weight_decay", 0.01)};
  const cuda::AdamWInputs inputs{.learning_rate = c.inputs[4].data<double>(),
                                 .step = c.inputs[5].data<int64_t>(),
                                 .coefficient = c.inputs[6].data<float>(),
                                 .gradient = c.inputs[1].data<float>() + offset};
  CUstream_st* stream = CudaQueue(c).stream;
  if (IsSplit(c.node)) {
    cuda::SplitAdamW(attributes, inputs, count, c.outputs[0].data<uint16_t>() + offset, state.low, state.m, state.v, stream);
  } else {
    cuda::AdamW(attributes, inputs, count, c.outputs[0].data<float>() + offset, state.m, state.v, stream);
  }
}

void LaunchAdamW(KernelContext& c) { Update(c, 0, c.inputs[1].elements(), StateOf(c)); }

// A coefficient that is not finite is known on the GPU only: the state travels and comes back as it was.
void LaunchOffloadStreamAdamW(KernelContext& c) {
  StreamState(c, CudaQueue(c).copies(), [&](int64_t offset, int64_t count, const StateParts& state) { Update(c, offset, count, state); });
}

std::string Refuse(const Node& node) { return RefuseType(node, 0, TypeOf(node, 0) == (IsSplit(node) ? DType::kBFloat16 : DType::kFloat32)); }

}  // namespace

WEIR_CUDA_KERNEL(AdamW, .launch = LaunchAdamW, .unsupported = Refuse)
WEIR_CUDA_KERNEL(OffloadStreamAdamW, .launch = LaunchOffloadStreamAdamW, .workspace_bytes = BucketWorkspace, .unsupported = Refuse)
WEIR_CUDA_KERNEL(PrefetchState, .launch = [](KernelContext& c) { PrefetchState(c, CudaQueue(c).copies()); })

}  // namespace weir
