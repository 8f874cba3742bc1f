#include "kernels/movement/slice_axes.h"

#include <algorithm>
#include <limits>

#include "graph/error.h"

namespace weir {
namespace {

constexpr int64_t kFar = int64_t{1} << 31;  // beyond any dim: what "to the end" is written as

SliceAxis ResolveConstant(int64_t dim, int64_t start, int64_t end, int64_t step) {
  if (dim == 0) return {0, step, 0};
  if (start < 0) start += dim;
  if (end < 0) end += dim;
  if (step > 0) {
    start = std::clamp<int64_t>(start, 0, dim);
    end = std::clamp<int64_t>(end, 0, dim);
    return {start, step, end > start ? (end - start - 1) / step + 1 : 0};
  }
  start = std::clamp<int64_t>(start, 0, dim - 1);
  end = std::clamp<int64_t>(end, -1, dim - 1);
  step = std::max(step, -std::numeric_limits<int64_t>::max());
  return {start, step, start > end ? (start - end - 1) / -step + 1 : 0};
}

// The value at batch = sequence = 1: its sign is the sign, and for a dim it is a lower bound.
int64_t Least(const Dim& value) { return value.Evaluate(1, 1); }

// `bound` cut off at dim, for a bound that is not negative.
Dim CutOff(const Dim& dim, const Dim& bound) {
  if (bound.IsConstant() && bound.Constant() >= kFar) return dim;
  if (!dim.IsKnown()) return bound == Dim(0) ? Dim(0) : Dim::Unknown();
  if (bound.IsConstant()) return bound.Constant() <= Least(dim) ? bound : Dim::Unknown();
  if (dim.IsConstant()) return bound;
  const Dim left = dim - bound;
  if (!left.IsKnown()) return Dim::Unknown();
  return Least(left) >= 0 ? bound : dim;
}

// Number of elements of dim at or after `bound`, and the bound, for either sign.
struct Bound {
  Dim at, left;
};
Bound ResolveBound(const Dim& dim, const Dim& bound) {
  if (!bound.IsKnown()) return {Dim::Unknown(), Dim::Unknown()};
  if (Least(bound) >= 0) {
    const Dim at = CutOff(dim, bound);
    return {at, at == Dim(0) ? dim : dim - at};
  }
  const Dim left =
      CutOff(dim, bound.IsConstant() && bound.Constant() <= -kFar ? Dim(kFar) : Dim(0) - bound);
  return {left == dim ? Dim(0) : dim - left, left};
}

SliceAxis ResolveSymbolic(const Dim& dim, const Dim& start, const Dim& end, int64_t step) {
  const Bound from = ResolveBound(dim, start), to = ResolveBound(dim, end);
  const bool to_end = to.at == dim || (end.IsConstant() && end.Constant() >= kFar);
  if (step < 0) {
    const bool whole = (start == Dim(-1) || (start.IsConstant() && start.Constant() >= kFar)) &&
                       end.IsConstant() && end.Constant() <= -kFar;
    return {Dim::Unknown(), step, whole && step == -1 ? dim : Dim::Unknown()};
  }
  Dim size = to_end ? from.left : from.at == Dim(0) ? to.at : to.at - from.at;
  if (size.IsKnown() && Least(size) < 0) size = 0;
  if (step != 1)
    size = size.IsConstant() ? Dim(DivCeil(size.Constant(), step)) : DivExact(size, step);
  return {from.at, step, size};
}

}  // namespace

SliceAxis ResolveSlice(const Dim& dim, const Dim& start, const Dim& end, int64_t step) {
  WEIR_CHECK(step != 0, ErrorCode::kInvalidShape, "step 0 in a slice");
  if (dim.IsConstant() && start.IsConstant() && end.IsConstant()) {
    return ResolveConstant(dim.Constant(), start.Constant(), end.Constant(), step);
  }
  return ResolveSymbolic(dim, start, end, step);
}

std::vector<SliceAxis> ResolveSlices(const Shape& x, const Shape& starts, const Shape& ends,
                                     const std::vector<int64_t>& axes,
                                     const std::vector<int64_t>& steps) {
  WEIR_CHECK(starts.size() == ends.size() && (axes.empty() || axes.size() == starts.size()) &&
                 (steps.empty() || steps.size() == starts.size()),
             ErrorCode::kInvalidShape, "starts, ends, axes and steps hold ", starts.size(), ", ",
             ends.size(), ", ", axes.size(), " and ", steps.size(),
             " elements; expected equal counts");
  WEIR_CHECK(starts.size() <= x.size(), ErrorCode::kInvalidShape, starts.size(),
             " slices of an input of rank ", x.size());
  std::vector<SliceAxis> out;
  for (const Dim& dim : x) out.push_back({0, 1, dim});
  const auto normal = NormalizeAxes(axes, Rank(x));
  for (size_t k = 0; k < starts.size(); ++k) {
    const size_t axis = axes.empty() ? k : static_cast<size_t>(normal[k]);
    out[axis] = ResolveSlice(x[axis], starts[k], ends[k], steps.empty() ? 1 : steps[k]);
  }
  return out;
}

Shape SlicedShape(const std::vector<SliceAxis>& slices) {
  Shape shape;
  for (const SliceAxis& axis : slices) shape.push_back(axis.size);
  return shape;
}

Shape SplitSizes(const Dim& dim, const std::optional<Shape>& given, int64_t outputs) {
  if (given) {
    WEIR_CHECK(Rank(*given) == outputs, ErrorCode::kInvalidShape, given->size(), " sizes for ",
               outputs, " outputs");
    Dim sum = 0;
    for (const Dim& size : *given) {
      WEIR_CHECK(!size.IsConstant() || size.Constant() >= 0, ErrorCode::kInvalidShape,
                 "negative size in ", ToString(*given));
      sum = sum + size;
    }
    WEIR_CHECK(!sum.IsConstant() || !dim.IsConstant() || sum == dim, ErrorCode::kInvalidShape,
               "sizes ", ToString(*given), " do not add up to ", ToString(dim));
    return *given;
  }
  Shape sizes(static_cast<size_t>(outputs), DivExact(dim, outputs));
  if (!dim.IsConstant()) return sizes;
  const int64_t size = DivCeil(dim.Constant(), outputs),
                last = dim.Constant() - size * (outputs - 1);
  WEIR_CHECK(last >= 0, ErrorCode::kInvalidShape, "cannot split ", ToString(dim), " elements into ",
             outputs, " parts");
  std::fill(sizes.begin(), sizes.end(), Dim(size));
  sizes.back() = last;
  return sizes;
}

IndexMap SliceMap(const Dims& x, const std::vector<SliceAxis>& slices) {
  const Dims strides = Strides(x);
  return MakeIndexMap(ToDims(SlicedShape(slices)), [&](const Dims& at) {
    int64_t from = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      from += (slices[i].start.Constant() + at[i] * slices[i].step) * strides[i];
    }
    return from;
  });
}

}  // namespace weir
