#include "kernels/gather_scatter/maps.h"

namespace weir {

Shape GatheredShape(const Shape& x, const Shape& ids, int64_t axis) {
  const auto at = x.begin() + NormalizeAxis(axis, Rank(x));
  Shape out(x.begin(), at);
  out.insert(out.end(), ids.begin(), ids.end());
  out.insert(out.end(), at + 1, x.end());
  return out;
}

Shape GatheredNDShape(const Shape& x, const Shape& ids, int64_t batch_dims) {
  WEIR_CHECK(!ids.empty() && ids.back().IsConstant(), ErrorCode::kInvalidShape, "ids ",
             ToString(ids), " must have a constant last axis");
  const int64_t depth = ids.back().Constant();
  WEIR_CHECK(batch_dims >= 0 && batch_dims < Rank(ids) && depth >= 1 && depth <= Rank(x) &&
                 batch_dims + depth <= Rank(x),
             ErrorCode::kInvalidShape, "ids ", ToString(ids), " with ", batch_dims,
             " batch axes do not address ", ToString(x));
  for (int64_t i = 0; i < batch_dims; ++i) {
    const Dim &a = x[static_cast<size_t>(i)], &b = ids[static_cast<size_t>(i)];
    WEIR_CHECK(!a.IsConstant() || !b.IsConstant() || a == b, ErrorCode::kInvalidShape,
               "batch axis ", i, " differs: ", ToString(x), " and ids ", ToString(ids));
  }
  Shape out(ids.begin(), ids.end() - 1);
  out.insert(out.end(), x.begin() + batch_dims + depth, x.end());
  return out;
}

void CheckElementIds(const Shape& x, const Shape& ids, int64_t axis) {
  const int64_t normal = NormalizeAxis(axis, Rank(x));
  WEIR_CHECK(x.size() == ids.size(), ErrorCode::kInvalidShape, "ids ", ToString(ids),
             " must have the rank of ", ToString(x));
  for (int64_t i = 0; i < Rank(x); ++i) {
    const Dim &a = x[static_cast<size_t>(i)], &b = ids[static_cast<size_t>(i)];
    WEIR_CHECK(i == normal || !a.IsConstant() || !b.IsConstant() || b.Constant() <= a.Constant(),
               ErrorCode::kInvalidShape, "axis ", i, " of ids ", ToString(ids),
               " is larger than that of ", ToString(x));
  }
}

IndexMap GatherMap(const Dims& x, const Dims& id_dims, const std::vector<int64_t>& ids,
                   int64_t axis) {
  const auto a = static_cast<size_t>(NormalizeAxis(axis, Rank(x)));
  const Dims strides = Strides(x), id_strides = Strides(id_dims);
  const size_t r = id_dims.size();
  return MakeIndexMap(
      ToDims(GatheredShape(ToShape(x), ToShape(id_dims), axis)), [&](const Dims& at) {
        int64_t from = 0, position = 0;
        for (size_t i = 0; i < a; ++i) from += at[i] * strides[i];
        for (size_t i = 0; i < r; ++i) position += at[a + i] * id_strides[i];
        for (size_t i = a + 1; i < x.size(); ++i) from += at[i - 1 + r] * strides[i];
        return from +
               NormalizeIndex(ids[static_cast<size_t>(position)], x[a], position) * strides[a];
      });
}

IndexMap GatherElementsMap(const Dims& x, const Dims& id_dims, const std::vector<int64_t>& ids,
                           int64_t axis) {
  CheckElementIds(ToShape(x), ToShape(id_dims), axis);
  const auto a = static_cast<size_t>(NormalizeAxis(axis, Rank(x)));
  const Dims strides = Strides(x);
  int64_t position = -1;
  return MakeIndexMap(id_dims, [&](const Dims& at) {
    ++position;
    int64_t from = NormalizeIndex(ids[static_cast<size_t>(position)], x[a], position) * strides[a];
    for (size_t i = 0; i < at.size(); ++i) from += i == a ? 0 : at[i] * strides[i];
    return from;
  });
}

IndexMap GatherNDMap(const Dims& x, const Dims& id_dims, const std::vector<int64_t>& ids,
                     int64_t batch_dims) {
  const Dims dims = ToDims(GatheredNDShape(ToShape(x), ToShape(id_dims), batch_dims));
  const Dims strides = Strides(x), id_strides = Strides(id_dims);
  const auto batch = static_cast<size_t>(batch_dims), depth = static_cast<size_t>(id_dims.back());
  const size_t outer = id_dims.size() - 1;
  return MakeIndexMap(dims, [&](const Dims& at) {
    int64_t from = 0, position = 0;
    for (size_t i = 0; i < batch; ++i) from += at[i] * strides[i];
    for (size_t i = 0; i < outer; ++i) position += at[i] * id_strides[i];
    for (size_t i = 0; i < depth; ++i) {
      const int64_t p = position + static_cast<int64_t>(i);
      from += NormalizeIndex(ids[static_cast<size_t>(p)], x[batch + i], p) * strides[batch + i];
    }
    for (size_t i = outer; i < at.size(); ++i) from += at[i] * strides[batch + depth + i - outer];
    return from;
  });
}

}  // namespace weir
