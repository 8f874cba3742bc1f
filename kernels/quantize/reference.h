#pragma once
#include <algorithm>
#include <cmath>
#include <complex>

#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"

namespace weir {

// Index of the scale of every element of x. Scales: one (per tensor); [dims[axis]] (per axis); or
// x's dims with ceil(dims[axis] / block_size) along `axis` (blocked). Throws InvalidModel on other
// shapes.
std::vector<int64_t> ScaleIndex(const Attributes& attributes, const Dims& x, const Dims& scale);
// The integers a quantised dtype can hold.
struct IntRange {
  int64_t low, high;
};
IntRange RangeOf(DType dtype);

// y = (x - zero_point) * scale
template <class T>
void DequantizeLinearReference(Eval<T>& e) {
  const Array<T>&x = Integers(e, 0), &scale = e.floats(1);
  WEIR_CHECK(!e.has(2) || Integers(e, 2).dims == scale.dims, ErrorCode::kInvalidModel,
             "DequantizeLinear: zero points ", ToString(Integers(e, 2).dims), " and scales ",
             ToString(scale.dims));
  const auto index = ScaleIndex(e.attributes, x.dims, scale.dims);
  e.out[0] = Array<T>::Floats(x.dims);
  e.out[0].dtype = scale.dtype;
  for (size_t k = 0; k < x.i.size(); ++k) {
    const int64_t zero = e.has(2) ? Integers(e, 2).i[index[k]] : 0;
    e.out[0].f[k] = T(static_cast<float>(static_cast<double>(x.i[k]) - static_cast<double>(zero))) * scale.f[index[k]];
  }
}

// y = saturate(round(x / scale) + zero_point), halves to even
template <class T>
void QuantizeLinearReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &scale = e.floats(1);
  const auto index = ScaleIndex(e.attributes, x.dims, scale.dims);
  const DType dtype = e.has(2) ? Integers(e, 2).dtype : DType::kUInt8;
  const IntRange range = RangeOf(dtype);
  e.out[0] = Array<T>::Ints(x.dims, dtype);
  for (size_t k = 0; k < x.f.size(); ++k) {
    const int64_t zero = e.has(2) ? Integers(e, 2).i[index[k]] : 0;
    const double scaled =
        std::nearbyint(Real(T(x.f[k] / scale.f[index[k]]))) + static_cast<double>(zero);
    e.out[0].i[k] = std::isnan(scaled)
                        ? zero
                        : static_cast<int64_t>(std::clamp(scaled, static_cast<double>(range.low),
                                                          static_cast<double>(range.high)));
  }
}

}  // namespace weir
