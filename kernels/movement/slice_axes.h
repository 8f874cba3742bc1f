#pragma once
#include <optional>
#include <vector>

#include "graph/shape.h"
#include "kernels/common/index_map.h"

namespace weir {

// One axis of a slice: elements start, start + step, ... (`size` of them). Start and size may be
// unknown during inference.
struct SliceAxis {
  Dim start = 0;
  int64_t step = 1;
  Dim size;
};

// ONNX's clamping rules for one axis of `dim` elements. Launch sizes are taken to be at least 1; a
// symbolic end is taken to fit a constant dim (a table sliced to the sequence length).
SliceAxis ResolveSlice(const Dim& dim, const Dim& start, const Dim& end, int64_t step);

// All axes of x; axes without a slice are whole. `axes` and `steps` empty = 0..n-1 and 1.
std::vector<SliceAxis> ResolveSlices(const Shape& x, const Shape& starts, const Shape& ends,
                                     const std::vector<int64_t>& axes,
                                     const std::vector<int64_t>& steps);

Shape SlicedShape(const std::vector<SliceAxis>& slices);
// Starts and sizes must be constants.
IndexMap SliceMap(const Dims& x, const std::vector<SliceAxis>& slices);

// Sizes of a Split's outputs: those given, else ceil(dim / outputs) with a smaller last one.
Shape SplitSizes(const Dim& dim, const std::optional<Shape>& given, int64_t outputs);

}  // namespace weir
