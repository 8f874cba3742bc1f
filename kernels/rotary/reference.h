#pragma once
#include <cmath>

#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"

namespace weir {

// cos[r,i] = scale * cos(float32(p * inv_freq[i])), sin likewise, for p = part * length + r, r in [0, length)
template <class T>
void RotaryTableReference(Eval<T>& e) {
  const std::vector<double> inv_freq = e.attributes.Floats("inv_freq");
  const double scale = e.attributes.Float("scale", 1);
  const int64_t length = Integers(e, 0).i.at(0), half = static_cast<int64_t>(inv_freq.size());
  for (auto& table : e.out) table = Array<T>::Floats({length, half});
  const int64_t first = e.attributes.Int("part", 0) * length;
  for (int64_t row = 0; row < length; ++row) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<float>(first + row) * static_cast<float>(inv_freq[static_cast<size_t>(i)]);
      e.out[0].f[row * half + i] = T(static_cast<float>(scale * std::cos(angle)));
      if (e.out.size() > 1)
        e.out[1].f[row * half + i] = T(static_cast<float>(scale * std::sin(angle)));
    }
  }
}

// Where the two channels of pair i live: half layout (i, i + half), interleaved (2i, 2i + 1).
inline int64_t RotaryFirst(int64_t i, bool interleaved) { return interleaved ? 2 * i : i; }
inline int64_t RotarySecond(int64_t i, int64_t half, bool interleaved) {
  return interleaved ? 2 * i + 1 : i + half;
}

// direction 1: y1 = x1*cos - x2*sin, y2 = x2*cos + x1*sin;  direction -1 is its transpose
template <class T>
void RotateReference(Eval<T>& e, T direction, bool from_interleaved, bool to_interleaved) {
  const Array<T>&x = e.floats(0), &cos = e.floats(1), &sin = e.floats(2);
  const int64_t length = x.dims[1], heads = x.dims[2], width = x.dims[3], half = cos.dims[1];
  e.out[0] = x;
  const int64_t rows = width == 0 ? 0 : x.elements() / width;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t p = row / heads % length;
    for (int64_t i = 0; i < half; ++i) {
      const T x1 = x.f[row * width + RotaryFirst(i, from_interleaved)];
      const T x2 = x.f[row * width + RotarySecond(i, half, from_interleaved)];
      const T c = cos.f[p * half + i], s = direction * sin.f[p * half + i];
      e.out[0].f[row * width + RotaryFirst(i, to_interleaved)] = x1 * c - x2 * s;
      e.out[0].f[row * width + RotarySecond(i, half, to_interleaved)] = x2 * c + x1 * s;
    }
  }
}

template <class T>
void RotaryReference(Eval<T>& e) {
  RotateReference(e, T(1), e.attributes.Int("input_interleaved", 0) != 0,
                  e.attributes.Int("output_interleaved", 0) != 0);
}

template <class T>
void RotaryGradientReference(Eval<T>& e) {
  RotateReference(e, T(-1), e.attributes.Int("output_interleaved", 0) != 0,
                  e.attributes.Int("input_interleaved", 0) != 0);
}

}  // namespace weir
