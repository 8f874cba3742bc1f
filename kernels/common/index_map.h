#pragma once
#include "graph/eval.h"

namespace weir {

// What a data-movement op does: output element k copies input element source[k], or the fill value
// when source[k] is -1. Kernels do the same by strides; references, content inference and
// scatter-add gradients all read this one table.
struct IndexMap {
  Dims dims;
  std::vector<int64_t> source;
};

// Elements of a reference output; more than 2^31 is an error: references run while folding graphs
// from untrusted files.
int64_t CheckedElements(const Dims& dims);
Dims Strides(const Dims& dims);  // row-major
// Axis in [-rank, rank) as [0, rank); throws InvalidShape otherwise.
int64_t NormalizeAxis(int64_t axis, int64_t rank);
// The same for a list, which must not repeat an axis.
std::vector<int64_t> NormalizeAxes(const std::vector<int64_t>& axes, int64_t rank);
// An id in [-size, size) as [0, size); throws naming its position and value otherwise.
int64_t NormalizeIndex(int64_t id, int64_t size, int64_t position);

// Calls body(at, k) for every index tuple of `dims` in row-major order.
template <class F>
void ForEachIndex(const Dims& dims, F body) {
  const int64_t count = CheckedElements(dims);
  Dims at(dims.size(), 0);
  for (int64_t k = 0; k < count; ++k) {
    body(at, k);
    for (size_t i = dims.size(); i > 0; --i) {
      if (++at[i - 1] < dims[i - 1]) break;
      at[i - 1] = 0;
    }
  }
}

// The map whose element at index tuple `at` is source(at).
template <class F>
IndexMap MakeIndexMap(Dims dims, F source) {
  IndexMap map;
  map.source.resize(static_cast<size_t>(CheckedElements(dims)));
  ForEachIndex(dims,
               [&](const Dims& at, int64_t k) { map.source[static_cast<size_t>(k)] = source(at); });
  map.dims = std::move(dims);
  return map;
}

template <class E>
std::vector<E> TakeElements(const std::vector<E>& x, const std::vector<int64_t>& source,
                            E fill = {}) {
  std::vector<E> out;
  out.reserve(source.size());
  for (const int64_t at : source) out.push_back(at < 0 ? fill : x[static_cast<size_t>(at)]);
  return out;
}

// y[k] = x[source[k]]
template <class T>
Array<T> Take(const Array<T>& x, const IndexMap& map, T float_fill = T{}, int64_t int_fill = 0) {
  Array<T> out;
  out.dtype = x.dtype;
  out.dims = map.dims;
  if (x.is_float()) {
    out.f = TakeElements(x.f, map.source, float_fill);
  } else {
    out.i = TakeElements(x.i, map.source, int_fill);
  }
  return out;
}

// The transpose of Take: dx[source[k]] += dy[k], in order of k from zero.
template <class T>
Array<T> TakeGradient(const Array<T>& dy, const IndexMap& map, Dims dims) {
  WEIR_CHECK(dy.f.size() == map.source.size(), ErrorCode::kInvalidShape, "gradient ",
             ToString(dy.dims), " does not match the forward output ", ToString(map.dims));
  Array<T> dx = Array<T>::Floats(std::move(dims));
  for (size_t k = 0; k < dy.f.size(); ++k) {
    if (map.source[k] >= 0) dx.f[static_cast<size_t>(map.source[k])] += dy.f[k];
  }
  return dx;
}

// The elements of integer input k of a reference.
template <class T>
const std::vector<int64_t>& IntsOf(const Eval<T>& e, size_t k) {
  WEIR_CHECK(!e.x(k).is_float(), ErrorCode::kInvalidModel, "input ", k, " must be integers, got ",
             DTypeName(e.x(k).dtype));
  return e.x(k).i;
}

template <class T>
int64_t IntOf(const Eval<T>& e, size_t k) {
  const auto& values = IntsOf(e, k);
  WEIR_CHECK(values.size() == 1, ErrorCode::kInvalidShape, "input ", k,
             " must hold one element, got ", ToString(e.x(k).dims));
  return values[0];
}

inline int64_t Rank(const Dims& dims) { return static_cast<int64_t>(dims.size()); }
inline int64_t Rank(const Shape& shape) { return static_cast<int64_t>(shape.size()); }

}  // namespace weir
