#include "kernels/order/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/common/axis_view.h"
#include "kernels/device/known_ints.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

cuda::OrderShape ShapeOf(const Tensor& x, int64_t axis) {
  const AxisView view = ViewAxis(x.dims, axis);
  return {.rows = view.outer * view.inner, .size = view.size, .inner = view.inner};
}

void LaunchTopK(KernelContext& c) {
  const int64_t axis = c.attributes().Int("axis", -1);
  cuda::TopK(c.inputs[0].dtype, ShapeOf(c.inputs[0], axis),
             ViewAxis(c.node.out(0) ? c.outputs[0].dims : c.outputs[1].dims, axis).size,
             c.attributes().Int("largest", 1) != 0, c.inputs[0].bytes, c.outputs[0].bytes,
             c.outputs.size() > 1 ? c.outputs[1].data<int64_t>() : nullptr, CudaQueue(c).stream);
}

template <bool largest>
void LaunchArg(KernelContext& c) {
  cuda::ArgBest(c.inputs[0].dtype, ShapeOf(c.inputs[0], c.attributes().Int("axis", 0)), largest,
                c.attributes().Int("select_last_index", 0) != 0, c.inputs[0].bytes,
                c.outputs[0].data<int64_t>(), CudaQueue(c).stream);
}

void LaunchCumSum(KernelContext& c) {
  const cuda::CumSumOptions options{.exclusive = c.attributes().Int("exclusive", 0) != 0,
                                    .reverse = c.attributes().Int("reverse", 0) != 0};
  cuda::CumSum(c.inputs[0].dtype, ShapeOf(c.inputs[0], KnownInts(c.node, 1).at(0)), options,
               c.inputs[0].bytes, c.outputs[0].bytes, CudaQueue(c).stream);
}

std::string RefuseCumSum(const Node& node) {
  const DType dtype = TypeOf(node, 0);
  if (std::string reason = RefuseType(node, 0, dtype == DType::kFloat32 || IsInteger(dtype)); !reason.empty())
    return reason;
  return RefuseUnknownInts<1>(node);
}

}  // namespace

WEIR_CUDA_KERNEL(TopK, .launch = LaunchTopK, .unsupported = RefuseAllButNumbers)
WEIR_CUDA_KERNEL(ArgMax, .launch = LaunchArg<true>, .unsupported = RefuseAllButNumbers)
WEIR_CUDA_KERNEL(ArgMin, .launch = LaunchArg<false>, .unsupported = RefuseAllButNumbers)
WEIR_CUDA_KERNEL(CumSum, .launch = LaunchCumSum, .unsupported = RefuseCumSum)

}  // namespace weir
