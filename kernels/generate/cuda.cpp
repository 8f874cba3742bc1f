#include "kernels/generate/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/common/axis_view.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/device/strided.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void LaunchRange(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  cuda::Range(y.dtype, c.inputs[0].bytes, c.inputs[2].bytes, y.elements(), y.bytes, CudaQueue(c).stream);
}
std::string RefuseRange(const Node& node) {
  return RefuseType(node, 0, TypeOf(node, 0) == DType::kFloat32 || IsInteger(TypeOf(node, 0)));
}

void LaunchConstantOfShape(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const Attribute* value = c.attributes().Find("value");
  const std::byte zeros[8] = {};
  const std::byte* element = value == nullptr ? zeros : std::get<TensorDataPtr>(*value)->bytes().data();
  cuda::FillElements(y.bytes, element, y.elements(), static_cast<int>(BytesOf(y.dtype, 1)),
                     CudaQueue(c).stream);
}

void LaunchOneHot(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const AxisView view = ViewAxis(y.dims, c.attributes().Int("axis", -1));
  cuda::OneHot({.outer = view.outer,
                .depth = view.size,
                .inner = view.inner,
                .int32_ids = c.inputs[0].dtype == DType::kInt32},
               static_cast<int>(BytesOf(y.dtype, 1)), c.inputs[0].bytes, c.inputs[2].bytes, y.bytes,
               CudaQueue(c).stream);
}
std::string RefuseOneHot(const Node& node) {
  if (std::string reason = RefuseType(node, 0, IsInteger(TypeOf(node, 0))); !reason.empty()) return reason;
  return RefusePacked(node);
}

}  // namespace

WEIR_CUDA_KERNEL(Range, .launch = LaunchRange, .unsupported = RefuseRange)
WEIR_CUDA_KERNEL(ConstantOfShape, .launch = LaunchConstantOfShape, .unsupported = RefusePacked)
WEIR_CUDA_KERNEL(OneHot, .launch = LaunchOneHot, .unsupported = RefuseOneHot)

}  // namespace weir
