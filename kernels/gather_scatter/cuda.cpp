#include "kernels/gather_scatter/cuda.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/common/axis_view.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/device/copy.h"
#include "kernels/device/rows.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

int64_t AxisOf(const KernelContext& c) { return c.attributes().Int("axis", 0); }
bool HasInt32Ids(const KernelContext& c) { return c.inputs[1].dtype == DType::kInt32; }

void Zero(KernelContext& c, const Tensor& tensor) {
  CheckCuda(cudaMemsetAsync(tensor.bytes, 0, static_cast<size_t>(tensor.size_bytes()), CudaQueue(c).stream),
            "zeroing");
}

void LaunchGather(KernelContext& c) {
  const Tensor &x = c.inputs[0], &ids = c.inputs[1];
  const AxisView view = ViewAxis(x.dims, AxisOf(c));
  cuda::GatherRows({.outer = view.outer,
                    .count = ids.elements(),
                    .size = view.size,
                    .row_bytes = view.inner * BytesOf(x.dtype, 1),
                    .int32_ids = HasInt32Ids(c),
                    .negative = true},
                   x.bytes, ids.bytes, c.outputs[0].bytes, CudaQueue(c).stream);
}

void LaunchGatherGradient(KernelContext& c) {
  const AxisView view = ViewAxis(c.outputs[0].dims, AxisOf(c));
  Zero(c, c.outputs[0]);
  cuda::AddRows({.outer = view.outer,
                 .count = c.inputs[1].elements(),
                 .size = view.size,
                 .inner = view.inner,
                 .int32_ids = HasInt32Ids(c)},
                c.inputs[0].data<float>(), c.inputs[1].bytes, c.outputs[0].data<float>(),
                CudaQueue(c).stream);
}

cuda::ElementPlaces PlacesOf(const KernelContext& c, const Dims& large) {
  const Dims &ids = c.inputs[1].dims, strides = Strides(large);
  cuda::ElementPlaces places;
  places.rank = static_cast<int>(ids.size());
  places.axis = static_cast<int>(NormalizeAxis(AxisOf(c), Rank(large)));
  places.large = large[static_cast<size_t>(places.axis)];
  places.int32_ids = HasInt32Ids(c);
  std::copy(ids.begin(), ids.end(), places.dims);
  std::copy(strides.begin(), strides.end(), places.strides);
  return places;
}

int ElementBytes(const Tensor& tensor) { return static_cast<int>(BytesOf(tensor.dtype, 1)); }

void LaunchGatherElements(KernelContext& c) {
  const Tensor& x = c.inputs[0];
  cuda::GatherElements(PlacesOf(c, x.dims), ElementBytes(x), x.bytes, c.inputs[1].bytes, c.outputs[0].bytes,
                       CudaQueue(c).stream);
}

void Add(KernelContext& c, const Tensor& updates) {
  cuda::AddElements(PlacesOf(c, c.outputs[0].dims), updates.dtype == DType::kBFloat16, updates.bytes,
                    c.inputs[1].bytes, c.outputs[0].data<float>(), CudaQueue(c).stream);
}

void LaunchGatherElementsGradient(KernelContext& c) {
  Zero(c, c.outputs[0]);
  Add(c, c.inputs[0]);
}

bool Adds(const Node& node) { return node.attributes.String("reduction", "none") == "add"; }

void LaunchScatterElements(KernelContext& c) {
  LaunchDeviceCopy(c);
  if (Adds(c.node)) return Add(c, c.inputs[2]);
  const Tensor& y = c.outputs[0];
  cuda::ScatterElements(PlacesOf(c, y.dims), ElementBytes(y), c.inputs[2].bytes, c.inputs[1].bytes, y.bytes,
                        CudaQueue(c).stream);
}

std::string RefuseRank(const Node& node) {
  if (node.in(1)->shape.size() > cuda::ElementPlaces::kMaxRank) return "rank above 8";
  return RefusePacked(node);
}
std::string RefuseGradient(const Node& node) {
  if (std::string reason =
          RefuseType(node, 0, TypeOf(node, 0) == DType::kFloat32 && node.out(0)->dtype == DType::kFloat32);
      !reason.empty()) {
    return reason;
  }
  return RefuseRank(node);
}
std::string RefuseScatter(const Node& node) {
  if (Adds(node) && TypeOf(node, 0) != DType::kFloat32) return "reduction 'add' of other than float32";
  return RefuseRank(node);
}

}  // namespace

WEIR_CUDA_KERNEL(Gather, .launch = LaunchGather, .unsupported = RefusePacked)
WEIR_CUDA_KERNEL(GatherGradient, .launch = LaunchGatherGradient, .unsupported = RefuseGradient)
WEIR_CUDA_KERNEL(GatherElements, .launch = LaunchGatherElements, .unsupported = RefuseRank)
WEIR_CUDA_KERNEL(GatherElementsGradient, .launch = LaunchGatherElementsGradient,
                 .unsupported = RefuseGradient)
WEIR_CUDA_KERNEL(ScatterElements, .launch = LaunchScatterElements, .unsupported = RefuseScatter)

}  // namespace weir
