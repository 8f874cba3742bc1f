// What the movement ops copy, as strided blocks: kernels of every device run these.
#pragma once
#include <optional>
#include <vector>

#include "kernels/common/strided.h"

namespace weir {

// y = x transposed.
StridedBlock TransposeBlock(const Dims& x, const Dims& y, const std::vector<int64_t>& perm);

// The slab of `whole` that begins at `at` on `axis` and has the dims of `part`, and its first element.
struct Slab {
  StridedBlock block;  // to `part` (into_part) or from it
  int64_t offset;      // in `whole`
};
Slab SlabOf(const Dims& whole, int64_t axis, int64_t at, const Dims& part, bool into_part);

// The elements a slice takes of x. Throws InvalidArgument when their dims are not `planned`.
struct SliceBlock {
  Dims dims, strides;
  int64_t offset = 0;
};
struct SliceInputs {
  std::vector<int64_t> starts, ends, axes, steps;
};
SliceBlock SliceBlockOf(const Dims& x, const SliceInputs& slice, const Dims& planned);

// Axes of `large` with the strides of `small` aligned at the back, 0 where it is repeated.
Dims RepeatedStrides(const Dims& small, const Dims& large);
// Every axis of the tiled dims as (repeat, position): the strides of the small tensor are 0 on repeats.
// `sum`: to the small tensor.
StridedBlock TileBlock(const Dims& small, const Dims& tiled, bool sum);

// The elements of x that a Pad keeps: `pads` as in ONNX (all amounts before, then all after), negative ones
// crop.
struct PadBlock {
  StridedBlock block;
  int64_t to_offset = 0, from_offset = 0;
};
PadBlock PadBlockOf(const Dims& x, const Dims& y, const std::vector<int64_t>& pads,
                    const std::optional<std::vector<int64_t>>& axes);

}  // namespace weir
