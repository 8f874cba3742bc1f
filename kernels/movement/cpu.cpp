#include "kernels/common/copy_kernel.h"
#include "kernels/common/index_map.h"
#include "kernels/common/integers.h"
#include "kernels/common/strided.h"
#include "kernels/movement/blocks.h"
#include "kernels/movement/slice_axes.h"

namespace weir {
namespace {

void CopyBlock(const StridedBlock& block, const Tensor& to, int64_t to_offset, const Tensor& from,
               int64_t from_offset) {
  const int64_t size = BytesOf(to.dtype, 1);
  CopyStrided(block, to.bytes + to_offset * size, from.bytes + from_offset * size, size);
}

// ---- Transpose ----

void LaunchTranspose(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  CopyBlock(TransposeBlock(x.dims, y.dims, c.attributes().Ints("perm")), y, 0, x, 0);
}

// ---- Concat, Split ----

void CopySlab(const Tensor& whole, int64_t axis, int64_t at, const Tensor& part, bool into_part) {
  const Slab slab = SlabOf(whole.dims, axis, at, part.dims, into_part);
  if (into_part) {
    CopyBlock(slab.block, part, 0, whole, slab.offset);
  } else {
    CopyBlock(slab.block, whole, slab.offset, part, 0);
  }
}

void LaunchConcat(KernelContext& c) {
  const int64_t axis = NormalizeAxis(c.attributes().Int("axis"), Rank(c.outputs[0].dims));
  int64_t at = 0;
  for (const Tensor& part : c.inputs) {
    CopySlab(c.outputs[0], axis, at, part, /*into_part=*/false);
    at += part.dims[static_cast<size_t>(axis)];
  }
}

void LaunchSplit(KernelContext& c) {
  const int64_t axis = NormalizeAxis(c.attributes().Int("axis", 0), Rank(c.inputs[0].dims));
  const auto given = c.has(1) ? std::optional<Shape>(ToShape(ReadInts(c.inputs[1]))) : std::nullopt;
  const Dims sizes = ToDims(SplitSizes(c.inputs[0].dims[static_cast<size_t>(axis)], given,
                                       static_cast<int64_t>(c.outputs.size())));
  int64_t at = 0;
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    if (c.outputs[i]) CopySlab(c.inputs[0], axis, at, c.outputs[i], /*into_part=*/true);
    at += sizes[i];
  }
}

// ---- Slice ----

// The slice of inputs first.. (starts, ends, axes?, steps?).
SliceBlock SliceOf(const KernelContext& c, const Dims& x, size_t first, const Dims& planned) {
  const auto ints = [&](size_t i) { return c.has(i) ? ReadInts(c.inputs[i]) : std::vector<int64_t>{}; };
  return SliceBlockOf(x, {ints(first), ints(first + 1), ints(first + 2), ints(first + 3)}, planned);
}

void LaunchSlice(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const SliceBlock slice = SliceOf(c, c.inputs[0].dims, 1, y.dims);
  CopyBlock({y.dims, Strides(y.dims), slice.strides}, y, 0, c.inputs[0], slice.offset);
}

void LaunchSliceGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  const SliceBlock slice = SliceOf(c, dx.dims, 2, dy.dims);
  const float zero = 0;
  FillElements(dx.bytes, reinterpret_cast<const std::byte*>(&zero), dx.elements(), sizeof(float));
  CopyBlock({dy.dims, slice.strides, Strides(dy.dims)}, dx, slice.offset, dy, 0);
}

// ---- Expand, Tile ----

void LaunchExpand(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  CopyBlock({y.dims, Strides(y.dims), RepeatedStrides(x.dims, y.dims)}, y, 0, x, 0);
}

void LaunchExpandGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  SumStrided({dy.dims, RepeatedStrides(dx.dims, dy.dims), Strides(dy.dims)}, dx.data<float>(),
             dy.data<float>());
}

void LaunchTile(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  CopyBlock(TileBlock(x.dims, y.dims, /*sum=*/false), y, 0, x, 0);
}

void LaunchTileGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  SumStrided(TileBlock(dx.dims, dy.dims, /*sum=*/true), dx.data<float>(), dy.data<float>());
}

}  // namespace

#define MOVEMENT_CPU_KERNEL(Name)                                                    \
  const Kernel& Name##CpuKernel() {                                                  \
    static const Kernel kernel{.launch = Launch##Name, .unsupported = RefusePacked}; \
    return kernel;                                                                   \
  }
MOVEMENT_CPU_KERNEL(Transpose)
MOVEMENT_CPU_KERNEL(Concat)
MOVEMENT_CPU_KERNEL(Split)
MOVEMENT_CPU_KERNEL(Slice)
MOVEMENT_CPU_KERNEL(SliceGradient)
MOVEMENT_CPU_KERNEL(Expand)
MOVEMENT_CPU_KERNEL(ExpandGradient)
MOVEMENT_CPU_KERNEL(Tile)
MOVEMENT_CPU_KERNEL(TileGradient)

}  // namespace weir
