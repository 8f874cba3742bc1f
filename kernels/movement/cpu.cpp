#include "kernels/common/copy_kernel.h"
#include "kernels/common/index_map.h"
#include "kernels/common/integers.h"
#include "kernels/common/strided.h"
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
  const Dims strides = Strides(x.dims);
  std::vector<int64_t> perm = c.attributes().Ints("perm");
  const int64_t rank = Rank(x.dims);
  StridedBlock block{y.dims, Strides(y.dims), {}};
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t axis =
        perm.empty() ? rank - 1 - i : NormalizeAxis(perm[static_cast<size_t>(i)], rank);
    block.from_strides.push_back(strides[static_cast<size_t>(axis)]);
  }
  CopyBlock(block, y, 0, x, 0);
}

// ---- Concat, Split ----

// Copies the slab of `whole` that begins at `at` on `axis` and has the dims of `part`, either way.
void CopySlab(const Tensor& whole, int64_t axis, int64_t at, const Tensor& part, bool into_part) {
  const Dims strides = Strides(whole.dims), dense = Strides(part.dims);
  const int64_t offset = at * strides[static_cast<size_t>(axis)];
  if (into_part) {
    CopyBlock({part.dims, dense, strides}, part, 0, whole, offset);
  } else {
    CopyBlock({part.dims, strides, dense}, whole, offset, part, 0);
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

// The slice of inputs first.. (starts, ends, axes?, steps?) and where its first element is.
struct SliceBlock {
  Dims dims, strides;
  int64_t offset = 0;
};

SliceBlock SliceBlockOf(const KernelContext& c, const Dims& x, size_t first, const Dims& planned) {
  const auto ints = [&](size_t i) {
    return c.has(i) ? ReadInts(c.inputs[i]) : std::vector<int64_t>{};
  };
  const auto slices = ResolveSlices(ToShape(x), ToShape(ints(first)), ToShape(ints(first + 1)),
                                    ints(first + 2), ints(first + 3));
  const Dims strides = Strides(x);
  SliceBlock block{.dims = ToDims(SlicedShape(slices)), .strides = {}};
  WEIR_CHECK(block.dims == planned, ErrorCode::kInvalidArgument, "the slice takes ",
             ToString(block.dims), ", planned ", ToString(planned));
  for (size_t i = 0; i < x.size(); ++i) {
    block.offset += block.dims[i] == 0 ? 0 : slices[i].start.Constant() * strides[i];
    // The step of a single element is never taken and may be out of any range.
    block.strides.push_back(block.dims[i] > 1 ? slices[i].step * strides[i] : 0);
  }
  return block;
}

void LaunchSlice(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const SliceBlock slice = SliceBlockOf(c, c.inputs[0].dims, 1, y.dims);
  CopyBlock({y.dims, Strides(y.dims), slice.strides}, y, 0, c.inputs[0], slice.offset);
}

void LaunchSliceGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  const SliceBlock slice = SliceBlockOf(c, dx.dims, 2, dy.dims);
  const float zero = 0;
  FillElements(dx.bytes, reinterpret_cast<const std::byte*>(&zero), dx.elements(), sizeof(float));
  CopyBlock({dy.dims, slice.strides, Strides(dy.dims)}, dx, slice.offset, dy, 0);
}

// ---- Expand, Tile ----

// Axes of `large` with the strides of `small` aligned at the back, 0 where it is repeated.
Dims BroadcastStrides(const Dims& small, const Dims& large) {
  const Dims strides = Strides(small);
  Dims out(large.size(), 0);
  const size_t lead = large.size() - small.size();
  for (size_t i = 0; i < small.size(); ++i) out[lead + i] = small[i] == 1 ? 0 : strides[i];
  return out;
}

void LaunchExpand(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  CopyBlock({y.dims, Strides(y.dims), BroadcastStrides(x.dims, y.dims)}, y, 0, x, 0);
}

void LaunchExpandGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &dx = c.outputs[0];
  SumStrided({dy.dims, BroadcastStrides(dx.dims, dy.dims), Strides(dy.dims)}, dx.data<float>(),
             dy.data<float>());
}

// Every axis of the tiled dims as (repeat, position): the strides of the small tensor are 0 on
// repeats.
StridedBlock TileBlock(const Dims& small, const Dims& tiled, bool sum) {
  const Dims small_strides = Strides(small), tiled_strides = Strides(tiled);
  Dims dims, at_small, at_tiled;
  for (size_t i = 0; i < small.size(); ++i) {
    const int64_t repeats = small[i] == 0 ? 0 : tiled[i] / small[i];
    dims.insert(dims.end(), {repeats, small[i]});
    at_small.insert(at_small.end(), {0, small_strides[i]});
    at_tiled.insert(at_tiled.end(), {small[i] * tiled_strides[i], tiled_strides[i]});
  }
  return sum ? StridedBlock{dims, at_small, at_tiled} : StridedBlock{dims, at_tiled, at_small};
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
