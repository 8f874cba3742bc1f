#pragma once
#include <cmath>
#include <complex>

#include "graph/dtype.h"

namespace weir {

// Low bits of `value` as `to`, back as int64; bool is value != 0.
int64_t NarrowInt(int64_t value, DType to);
// Truncates towards zero and saturates to the range of `to`; NaN is 0; bool is value != 0.
int64_t FloatToInt(double value, DType to);
// The nearest value of a float type, ties to even.
double RoundDouble(double value, DType to);

inline float RoundFloat(float value, DType to) {
  return static_cast<float>(RoundDouble(value, to));
}
inline double RoundFloat(double value, DType to) { return RoundDouble(value, to); }
// Rounding has no derivative; the complex step sees the identity.
inline std::complex<double> RoundFloat(std::complex<double> value, DType) { return value; }

}  // namespace weir
