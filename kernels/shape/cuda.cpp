#include <algorithm>

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/strided.h"
#include "kernels/device/types.h"
#include "kernels/shape/range.h"

namespace weir {
namespace {

void LaunchShape(KernelContext& c) {
  const Dims& x = c.inputs[0].dims;
  const auto [start, end] = ShapeRange(c.attributes(), static_cast<int64_t>(x.size()));
  cuda::WriteInts(c.outputs[0].data<int64_t>(), x.data() + start, static_cast<int>(end - start),
                  CudaQueue(c).stream);
}

void LaunchSize(KernelContext& c) {
  const int64_t size = c.inputs[0].elements();
  cuda::WriteInts(c.outputs[0].data<int64_t>(), &size, 1, CudaQueue(c).stream);
}

std::string RefuseHighRank(const Node& node) { return node.in(0)->shape.size() > 16 ? "rank above 16" : ""; }

}  // namespace

WEIR_CUDA_KERNEL(Shape, .launch = LaunchShape, .unsupported = RefuseHighRank)
WEIR_CUDA_KERNEL(Size, .launch = LaunchSize)

}  // namespace weir
