#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/device/block.h"
#include "kernels/device/known_ints.h"
#include "kernels/device/types.h"
#include "kernels/movement/blocks.h"
#include "kernels/movement/slice_axes.h"

namespace weir {
namespace {

void CopyBlock(KernelContext& c, const StridedBlock& block, const Tensor& to, int64_t to_offset,
               const Tensor& from, int64_t from_offset) {
  const int64_t size = BytesOf(to.dtype, 1);
  CopyBlockOnDevice(block, to.bytes + to_offset * size, from.bytes + from_offset * size, size,
                    CudaQueue(c).stream);
}

void LaunchTranspose(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  CopyBlock(c, TransposeBlock(x.dims, y.dims, c.attributes().Ints("perm")), y, 0, x, 0);
}

void LaunchConcat(KernelContext& c) {
  const int64_t axis = NormalizeAxis(c.attributes().Int("axis"), Rank(c.outputs[0].dims));
  int64_t at = 0;
  for (const Tensor& part : c.inputs) {
    const Slab slab = SlabOf(c.outputs[0].dims, axis, at, part.dims, /*into_part=*/false);
    CopyBlock(c, slab.block, c.outputs[0], slab.offset, part, 0);
    at += part.dims[static_cast<size_t>(axis)];
  }
}

void LaunchSplit(KernelContext& c) {
  const Dims& x = c.inputs[0].dims;
  const int64_t axis = NormalizeAxis(c.attributes().Int("axis", 0), Rank(x));
  const auto given = c.has(1) ? std::optional<Shape>(ToShape(KnownInts(c.node, 1))) : std::nullopt;
  const Dims sizes =
      ToDims(SplitSizes(x[static_cast<size_t>(axis)], given, static_cast<int64_t>(c.outputs.size())));
  int64_t at = 0;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    if (c.outputs[i]) {
      const Slab slab = SlabOf(x, axis, at, c.outputs[i].dims, /*into_part=*/true);
      CopyBlock(c, slab.block, c.outputs[i], 0, c.inputs[0], slab.offset);
    }
    at += sizes[i];
  }
}

// The slice of inputs first.. (starts, ends, axes?, steps?).
SliceBlock SliceOf(const KernelContext& c, const Dims& x, size_t first, const Dims& planned) {
  const auto ints = [&](size_t i) { return c.has(i) ? KnownInts(c.node, i) : std::vector<int64_t>{}; };
  return SliceBlockOf(x, {ints(first), ints(first + 1), ints(first + 2), ints(first + 3)}, planned);
}

void LaunchSlice(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const SliceBlock slice = SliceOf(c, c.inputs[0].dims, 1, y.dims);
  CopyBlock(c, {y.dims, Strides(y.dims), slice.strides}, y, 0, c.inputs[0], slice.offset);
}

void LaunchSliceGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  const SliceBlock slice = SliceOf(c, dx.dims, 2, dy.dims);
  CheckCuda(cudaMemsetAsync(dx.bytes, 0, static_cast<size_t>(dx.size_bytes()), CudaQueue(c).stream),
            "SliceGradient");
  CopyBlock(c, {dy.dims, slice.strides, Strides(dy.dims)}, dx, slice.offset, dy, 0);
}

void LaunchExpand(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  CopyBlock(c, {y.dims, Strides(y.dims), RepeatedStrides(x.dims, y.dims)}, y, 0, x, 0);
}

void LaunchExpandGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  SumBlockOnDevice({dy.dims, RepeatedStrides(dx.dims, dy.dims), Strides(dy.dims)}, dx, dy,
                   CudaQueue(c).stream);
}

void LaunchTile(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  CopyBlock(c, TileBlock(x.dims, y.dims, /*sum=*/false), y, 0, x, 0);
}

void LaunchTileGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  SumBlockOnDevice(TileBlock(dx.dims, dy.dims, /*sum=*/true), dx, dy, CudaQueue(c).stream);
}

template <size_t first>
std::string RefuseUnknown(const Node& node) {
  if (std::string reason = RefusePacked(node); !reason.empty()) return reason;
  return RefuseUnknownInts<first>(node);
}
std::string RefuseSum(const Node& node) {
  return RefuseType(node, 0, IsActivation(TypeOf(node, 0)) && TypeOf(node, 0) == node.out(0)->dtype);
}
std::string RefuseSliceGradient(const Node& node) {
  if (std::string reason = RefuseType(node, 0, TypeOf(node, 0) == node.out(0)->dtype); !reason.empty())
    return reason;
  return RefuseUnknown<2>(node);
}

}  // namespace

WEIR_CUDA_KERNEL(Transpose, .launch = LaunchTranspose, .unsupported = RefusePacked)
WEIR_CUDA_KERNEL(Concat, .launch = LaunchConcat, .unsupported = RefusePacked)
WEIR_CUDA_KERNEL(Split, .launch = LaunchSplit, .unsupported = RefuseUnknown<1>)
WEIR_CUDA_KERNEL(Slice, .launch = LaunchSlice, .unsupported = RefuseUnknown<1>)
WEIR_CUDA_KERNEL(SliceGradient, .launch = LaunchSliceGradient, .unsupported = RefuseSliceGradient)
WEIR_CUDA_KERNEL(Expand, .launch = LaunchExpand, .unsupported = RefusePacked)
WEIR_CUDA_KERNEL(ExpandGradient, .launch = LaunchExpandGradient, .unsupported = RefuseSum)
WEIR_CUDA_KERNEL(Tile, .launch = LaunchTile, .unsupported = RefusePacked)
WEIR_CUDA_KERNEL(TileGradient, .launch = LaunchTileGradient, .unsupported = RefuseSum)

}  // namespace weir
