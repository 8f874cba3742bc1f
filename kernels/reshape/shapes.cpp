#include "kernels/reshape/shapes.h"

#include <algorithm>

#include "graph/error.h"
#include "kernels/common/index_map.h"

namespace weir {

// The size that makes `out` (its entry `at` excepted) hold as many elements as x. Axes of `copied`
// have the same size in both and cancel, so that sizes of zero and unknown sizes do no harm there.
static Dim RemainingSize(const Shape& x, const Shape& out, size_t at,
                         const std::vector<bool>& copied) {
  Dim total = 1, rest = 1;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i >= copied.size() || !copied[i]) total = total * x[i];
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (i != at && !copied[i]) rest = rest * out[i];
  }
  const Dim size = DivExact(total, rest);
  WEIR_CHECK(size.IsKnown() || !total.IsConstant() || !rest.IsConstant(), ErrorCode::kInvalidShape,
             "cannot view ", ToString(x), " as ", ToString(out), ": ", ToString(total),
             " elements do not divide by ", ToString(rest));
  return size;
}

Shape ReshapedShape(const Shape& x, const Shape& target, bool allowzero) {
  Shape out = target;
  std::vector<bool> copied(target.size(), false);
  std::optional<size_t> inferred, unknown;
  int unknowns = 0;
  for (size_t i = 0; i < target.size(); ++i) {
    if (!target[i].IsKnown()) {
      unknown = i;
      ++unknowns;
    } else if (target[i] == Dim(-1)) {
      WEIR_CHECK(!inferred, ErrorCode::kInvalidShape, "target ", ToString(target), " has two -1");
      inferred = i;
      out[i] = Dim::Unknown();
    } else if (target[i] == Dim(0) && !allowzero) {
      WEIR_CHECK(i < x.size(), ErrorCode::kInvalidShape, "target ", ToString(target),
                 " copies axis ", i, " of input ", ToString(x));
      out[i] = x[i];
      copied[i] = true;
    } else {
      WEIR_CHECK(!target[i].IsConstant() || target[i].Constant() >= 0, ErrorCode::kInvalidShape,
                 "target ", ToString(target), " has a negative size");
    }
  }
  if (inferred) {
    out[*inferred] = RemainingSize(x, out, *inferred, copied);
  } else if (unknowns == 1) {
    out[*unknown] = RemainingSize(x, out, *unknown, copied);
  } else {
    const Dim have = Product(x), want = Product(out);
    WEIR_CHECK(!have.IsConstant() || !want.IsConstant() || have == want, ErrorCode::kInvalidShape,
               "cannot view ", ToString(x), " as ", ToString(out), ": ", ToString(have),
               " elements against ", ToString(want));
  }
  return out;
}

Shape SqueezedShape(const Shape& x, const std::optional<std::vector<int64_t>>& axes) {
  std::vector<bool> drop(x.size(), false);
  if (axes) {
    for (const int64_t axis : NormalizeAxes(*axes, Rank(x))) {
      const Dim& size = x[static_cast<size_t>(axis)];
      WEIR_CHECK(!size.IsConstant() || size == Dim(1), ErrorCode::kInvalidShape, "axis ", axis,
                 " of ", ToString(x), " has size ", ToString(size), ", expected 1");
      drop[static_cast<size_t>(axis)] = true;
    }
  } else {
    for (size_t i = 0; i < x.size(); ++i) drop[i] = x[i] == Dim(1);
  }
  Shape out;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!drop[i]) out.push_back(x[i]);
  }
  return out;
}

Shape UnsqueezedShape(const Shape& x, const std::vector<int64_t>& axes) {
  const int64_t rank = Rank(x) + static_cast<int64_t>(axes.size());
  Shape out(static_cast<size_t>(rank));
  std::vector<bool> added(out.size(), false);
  for (const int64_t axis : NormalizeAxes(axes, rank)) added[static_cast<size_t>(axis)] = true;
  size_t from = 0;
  for (size_t i = 0; i < out.size(); ++i) out[i] = added[i] ? Dim(1) : x[from++];
  return out;
}

Shape FlattenedShape(const Shape& x, int64_t axis) {
  const int64_t rank = Rank(x);
  WEIR_CHECK(axis >= -rank && axis <= rank, ErrorCode::kInvalidShape, "axis ", axis,
             " is out of range for rank ", rank);
  const auto middle = x.begin() + (axis < 0 ? axis + rank : axis);
  return {Product(Shape(x.begin(), middle)), Product(Shape(middle, x.end()))};
}

}  // namespace weir
