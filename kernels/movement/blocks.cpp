#include "kernels/movement/blocks.h"

#include <algorithm>

#include "kernels/common/index_map.h"
#include "kernels/movement/slice_axes.h"

namespace weir {

StridedBlock TransposeBlock(const Dims& x, const Dims& y, const std::vector<int64_t>& perm) {
  const Dims strides = Strides(x);
  const int64_t rank = Rank(x);
  StridedBlock block{y, Strides(y), {}};
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t axis = perm.empty() ? rank - 1 - i : NormalizeAxis(perm[static_cast<size_t>(i)], rank);
    block.from_strides.push_back(strides[static_cast<size_t>(axis)]);
  }
  return block;
}

Slab SlabOf(const Dims& whole, int64_t axis, int64_t at, const Dims& part, bool into_part) {
  const Dims strides = Strides(whole), dense = Strides(part);
  return {into_part ? StridedBlock{part, dense, strides} : StridedBlock{part, strides, dense},
          at * strides[static_cast<size_t>(axis)]};
}

SliceBlock SliceBlockOf(const Dims& x, const SliceInputs& slice, const Dims& planned) {
  const auto slices =
      ResolveSlices(ToShape(x), ToShape(slice.starts), ToShape(slice.ends), slice.axes, slice.steps);
  const Dims strides = Strides(x);
  SliceBlock block{.dims = ToDims(SlicedShape(slices)), .strides = {}};
  WEIR_CHECK(block.dims == planned, ErrorCode::kInvalidArgument, "the slice takes ", ToString(block.dims),
             ", planned ", ToString(planned));
  for (size_t i = 0; i < x.size(); ++i) {
    block.offset += block.dims[i] == 0 ? 0 : slices[i].start.Constant() * strides[i];
    // The step of a single element is never taken and may be out of any range.
    block.strides.push_back(block.dims[i] > 1 ? slices[i].step * strides[i] : 0);
  }
  return block;
}

Dims RepeatedStrides(const Dims& small, const Dims& large) {
  const Dims strides = Strides(small);
  Dims out(large.size(), 0);
  const size_t lead = large.size() - small.size();
  for (size_t i = 0; i < small.size(); ++i) out[lead + i] = small[i] == 1 ? 0 : strides[i];
  return out;
}

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

PadBlock PadBlockOf(const Dims& x, const Dims& y, const std::vector<int64_t>& pads,
                    const std::optional<std::vector<int64_t>>& axes) {
  Dims before(x.size(), 0);
  const size_t amounts = pads.size() / 2;
  const std::vector<int64_t> listed = axes ? NormalizeAxes(*axes, Rank(x)) : std::vector<int64_t>{};
  for (size_t k = 0; k < amounts; ++k) before[axes ? static_cast<size_t>(listed[k]) : k] = pads[k];
  PadBlock pad{.block = {{}, Strides(y), Strides(x)}};
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t first = std::max<int64_t>(0, -before[i]), last = std::min(x[i], y[i] - before[i]);
    pad.block.dims.push_back(std::max<int64_t>(0, last - first));
    pad.from_offset += first * pad.block.from_strides[i];
    pad.to_offset += (first + before[i]) * pad.block.to_strides[i];
  }
  return pad;
}

}  // namespace weir
