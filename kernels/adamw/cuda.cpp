#include "kernels/adamw/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/adamw/bucket_stream.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void Update(KernelContext& c, int64_t offset, int64_t count, float* m, float* v) {
  const Attributes& a = c.attributes();
  const cuda::AdamWAttributes attributes{.beta1 = a.Float("beta1", 0.9),
                                         .beta2 = a.Float("beta2", 0.999),
                                         .epsilon = a.Float("epsilon", 1e-8),
                                         .weight_decay = a.Float("weight_decay", 0.01)};
  cuda::AdamW(attributes, c.inputs[4].data<double>(), c.inputs[5].data<int64_t>(), c.inputs[6].data<float>(),
              c.inputs[1].data<float>() + offset, count, c.outputs[0].data<float>() + offset, m, v, CudaQueue(c).stream);
}

void LaunchAdamW(KernelContext& c) {
  Update(c, 0, c.inputs[1].elements(), c.outputs[1].data<float>(), c.outputs[2].data<float>());
}

// A coefficient that is not finite is known on the GPU only: the moments travel and come back as they were.
void LaunchOffloadStreamAdamW(KernelContext& c) {
  StreamBuckets(CudaQueue(c).copies(), Buckets(c.attributes(), c.inputs[1].elements()), c.outputs[1].data<float>(),
                c.outputs[2].data<float>(), reinterpret_cast<float*>(c.workspace.data()),
                [&](int64_t offset, int64_t count, float* m, float* v) { Update(c, offset, count, m, v); });
}

std::string Refuse(const Node& node) { return RefuseType(node, 0, TypeOf(node, 0) == DType::kFloat32); }

}  // namespace

WEIR_CUDA_KERNEL(AdamW, .launch = LaunchAdamW, .unsupported = Refuse)
WEIR_CUDA_KERNEL(OffloadStreamAdamW, .launch = LaunchOffloadStreamAdamW, .workspace_bytes = BucketWorkspace, .unsupported = Refuse)

}  // namespace weir
