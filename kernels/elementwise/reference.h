#pragma once
#include <utility>

#include "graph/eval.h"
#include "kernels/cast/convert.h"
#include "kernels/elementwise/broadcast.h"
#include "kernels/elementwise/functions.h"

namespace weir {

// y = f(x), elementwise.
template <class Function, class T>
void UnaryReference(Eval<T>& e) {
  const Function function(e.attributes);
  const Array<T>& x = e.x(0);
  Array<T> y = x;
  if (x.is_float()) {
    for (T& v : y.f) v = function(v);
  } else if constexpr (requires { function.Int(int64_t{}); }) {
    for (int64_t& v : y.i) v = NarrowInt(function.Int(v), x.dtype);
  } else {
    throw Error(ErrorCode::kInvalidModel, StrCat("floats expected, got ", DTypeName(x.dtype)));
  }
  e.out[0] = std::move(y);
}

// Broadcasts all inputs from `first` on; returns their element indices into `index`.
template <class T>
Dims BroadcastInputs(const Eval<T>& e, std::vector<std::vector<int64_t>>& index) {
  Dims dims;
  for (size_t i = 0; i < e.in.size(); ++i) dims = BroadcastDims(dims, e.x(i).dims);
  for (size_t i = 0; i < e.in.size(); ++i) index.push_back(BroadcastIndex(e.x(i).dims, dims));
  return dims;
}

// y = f(f(x0, x1), x2) ...
template <class Function, class T>
void FoldReference(Eval<T>& e) {
  const Function function{};
  std::vector<std::vector<int64_t>> index;
  const Dims dims = BroadcastInputs(e, index);
  const bool is_float = e.x(0).is_float();
  for (size_t i = 1; i < e.in.size(); ++i) {
    WEIR_CHECK(e.x(i).is_float() == is_float, ErrorCode::kInvalidModel, "input ", i, " is ",
               DTypeName(e.x(i).dtype), ", input 0 is ", DTypeName(e.x(0).dtype));
  }
  Array<T> y = is_float ? Array<T>::Floats(dims) : Array<T>::Ints(dims, e.x(0).dtype);
  y.dtype = e.x(0).dtype;
  for (size_t k = 0; k < y.f.size(); ++k) {
    y.f[k] = e.x(0).f[index[0][k]];
    for (size_t i = 1; i < e.in.size(); ++i) y.f[k] = function(y.f[k], e.x(i).f[index[i][k]]);
  }
  for (size_t k = 0; k < y.i.size(); ++k) {
    y.i[k] = e.x(0).i[index[0][k]];
    for (size_t i = 1; i < e.in.size(); ++i) {
      y.i[k] = NarrowInt(function.Int(y.i[k], e.x(i).i[index[i][k]]), y.dtype);
    }
  }
  e.out[0] = std::move(y);
}

}  // namespace weir
