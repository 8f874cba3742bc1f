#include "kernels/adamw/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void LaunchAdamW(KernelContext& c) {
  const Attributes& a = c.attributes();
  const cuda::AdamWAttributes attributes{.beta1 = a.Float("beta1", 0.9),
                                         .beta2 = a.Float("beta2", 0.999),
                                         .epsilon = a.Float("epsilon", 1e-8),
                                         .weight_decay = a.Float("weight_decay", 0.01)};
  cuda::AdamW(attributes, c.inputs[4].data<double>(), c.inputs[5].data<int64_t>(), c.inputs[6].data<float>(),
              c.inputs[1].data<float>(), c.inputs[1].elements(), c.outputs[0].data<float>(),
              c.outputs[1].data<float>(), c.outputs[2].data<float>(), CudaQueue(c).stream);
}

std::string Refuse(const Node& node) { return RefuseType(node, 0, TypeOf(node, 0) == DType::kFloat32); }

}  // namespace

WEIR_CUDA_KERNEL(AdamW, .launch = LaunchAdamW, .unsupported = Refuse)

}  // namespace weir
