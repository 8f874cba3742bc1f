#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/elementwise/cuda.h"

namespace weir::cuda {
namespace {

// Whole small exponents by multiplication, as the reference does.
__device__ inline float PowOf(float x, float p) {
  if (p == 2) return x * x;
  if (p == 1) return x;
  if (p == 3) return x * x * x;
  if (p == -1) return 1 / x;
  return powf(x, p);
}

#define WEIR_FUNCTION(Name, value)                                 \
  struct Name##Function {                                          \
    __device__ static float Of(float a, float b) { return value; } \
  };
WEIR_FUNCTION(Add, a + b)
WEIR_FUNCTION(Sub, a - b)
WEIR_FUNCTION(Mul, a* b)
WEIR_FUNCTION(Div, a / b)
WEIR_FUNCTION(Min, (a < b || a != a) ? a : b)
WEIR_FUNCTION(Max, (a > b || a != a) ? a : b)
WEIR_FUNCTION(Pow, PowOf(a, b))
#undef WEIR_FUNCTION

// Both operands dense or one number: strides are 0 or 1.
template <class Function, class T>
__global__ void FlatKernel(const T* a, int a_stride, const T* b, int b_stride, int64_t count, int64_t packs,
                           T* y) {
  constexpr int kSize = Pack<T>::size;
  const float a0 = ToFloat(a[0]),
              b0 = ToFloat(b[0]);  // y never overlaps a single number unless it is one itself
  for (int64_t k = FirstIndex(); k < packs; k += IndexStride()) {
    Pack<T> u{}, v{};
    if (a_stride != 0) u = LoadPack(a + k * kSize);
    if (b_stride != 0) v = LoadPack(b + k * kSize);
    Pack<T> pack;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      pack.at[i] = FromFloat<T>(
          Function::Of(a_stride != 0 ? ToFloat(u.at[i]) : a0, b_stride != 0 ? ToFloat(v.at[i]) : b0));
    }
    StorePack(y + k * kSize, pack);
  }
  for (int64_t k = packs * kSize + FirstIndex(); k < count; k += IndexStride())
    y[k] = FromFloat<T>(Function::Of(ToFloat(a[k * a_stride]), ToFloat(b[k * b_stride])));
}

__device__ inline void Locate(const BroadcastAxes& axes, int64_t index, int64_t& a, int64_t& b) {
  a = b = 0;
  for (int i = axes.rank - 1; i >= 0; --i) {
    const int64_t rest = i > 0 ? index / axes.size[i] : 0, digit = index - rest * axes.size[i];
    a += digit * axes.stride[0][i];
    b += digit * axes.stride[1][i];
    index = rest;
  }
}

template <class Function, class T>
__global__ void BroadcastKernel(BroadcastAxes axes, const T* a, const T* b, T* y) {
  for (int64_t k = FirstIndex(); k < axes.count; k += IndexStride()) {
    int64_t i, j;
    Locate(axes, k, i, j);
    y[k] = FromFloat<T>(Function::Of(ToFloat(a[i]), ToFloat(b[j])));
  }
}

// Packs along the last axis, which both operands walk densely or not at all.
template <class Function, class T>
__global__ void BroadcastPacksKernel(BroadcastAxes axes, const T* a, const T* b, T* y) {
  constexpr int kSize = Pack<T>::size;
  const int last = axes.rank - 1;
  const bool a_dense = axes.stride[0][last] != 0, b_dense = axes.stride[1][last] != 0;
  for (int64_t k = FirstIndex(); k < axes.count / kSize; k += IndexStride()) {
    int64_t i, j;
    Locate(axes, k * kSize, i, j);
    Pack<T> u, v, pack;
    if (a_dense) u = LoadPack(a + i);
    if (b_dense) v = LoadPack(b + j);
    const float a0 = a_dense ? 0.0f : ToFloat(a[i]), b0 = b_dense ? 0.0f : ToFloat(b[j]);
#pragma unroll
    for (int e = 0; e < kSize; ++e) {
      pack.at[e] =
          FromFloat<T>(Function::Of(a_dense ? ToFloat(u.at[e]) : a0, b_dense ? ToFloat(v.at[e]) : b0));
    }
    StorePack(y + k * kSize, pack);
  }
}

template <class T>
bool TakesPacks(const BroadcastAxes& axes, const void* a, const void* b, const void* y) {
  constexpr int kSize = Pack<T>::size;
  const int last = axes.rank - 1;
  bool takes = axes.size[last] % kSize == 0 && IsAligned(y);
  for (const int o : {0, 1}) {
    if (axes.stride[o][last] == 0) continue;
    takes = takes && IsAligned(o == 0 ? a : b);
    for (int i = 0; i < last; ++i) takes = takes && axes.stride[o][i] % kSize == 0;
  }
  return takes;
}

template <class Function>
void Run(DType dtype, const BroadcastAxes& axes, const void* a, const void* b, void* y, CUstream_st* stream) {
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    const T *u = static_cast<const T*>(a), *v = static_cast<const T*>(b);
    if (axes.rank > 1 && TakesPacks<T>(axes, a, b, y)) {
      BroadcastPacksKernel<Function, T>
          <<<BlocksFor(axes.count / Pack<T>::size), kThreads, 0, stream>>>(axes, u, v, static_cast<T*>(y));
      return;
    }
    if (axes.rank > 1) {
      BroadcastKernel<Function, T>
          <<<BlocksFor(axes.count), kThreads, 0, stream>>>(axes, u, v, static_cast<T*>(y));
      return;
    }
    const int a_stride = axes.rank == 1 && axes.stride[0][0] != 0,
              b_stride = axes.rank == 1 && axes.stride[1][0] != 0;
    const bool aligned = IsAligned(y) && (a_stride == 0 || IsAligned(a)) && (b_stride == 0 || IsAligned(b));
    const int64_t packs = aligned ? axes.count / Pack<T>::size : 0;
    FlatKernel<Function, T><<<BlocksFor(packs > 0 ? packs : axes.count), kThreads, 0, stream>>>(
        u, a_stride, v, b_stride, axes.count, packs, static_cast<T*>(y));
  });
}

template <class I>
__device__ I IntPow(I base, I exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (; exponent > 0; exponent >>= 1, factor *= factor) {
    if (exponent & 1) result *= factor;
  }
  return static_cast<I>(result);
}

// Sums and products wrap. Division by zero stops the queue: it is an error that no bits can say.
template <class I>
__device__ I IntOf(Binary function, I a, I b) {
  const uint64_t u = static_cast<uint64_t>(a), v = static_cast<uint64_t>(b);
  switch (function) {
    case Binary::kAdd:
      return static_cast<I>(u + v);
    case Binary::kSub:
      return static_cast<I>(u - v);
    case Binary::kMul:
      return static_cast<I>(u * v);
    case Binary::kDiv:
      if (b == 0) __trap();
      return b == -1 ? static_cast<I>(0 - u) : a / b;
    case Binary::kMin:
      return a < b ? a : b;
    case Binary::kMax:
      return a > b ? a : b;
    default:
      return IntPow(a, b);
  }
}

template <class I>
__global__ void IntKernel(Binary function, BroadcastAxes axes, const I* a, const I* b, I* y) {
  for (int64_t k = FirstIndex(); k < axes.count; k += IndexStride()) {
    int64_t i, j;
    Locate(axes, k, i, j);
    y[k] = IntOf(function, a[i], b[j]);
  }
}

// Pow of floats by integers.
template <class T, class I>
__global__ void IntExponentKernel(BroadcastAxes axes, const T* a, const I* b, T* y) {
  for (int64_t k = FirstIndex(); k < axes.count; k += IndexStride()) {
    int64_t i, j;
    Locate(axes, k, i, j);
    y[k] = FromFloat<T>(PowOf(ToFloat(a[i]), static_cast<float>(b[j])));
  }
}

template <class I>
void RunInts(Binary function, const BroadcastAxes& axes, const void* a, const void* b, void* y,
             CUstream_st* stream) {
  IntKernel<<<BlocksFor(axes.count), kThreads, 0, stream>>>(function, axes, static_cast<const I*>(a),
                                                            static_cast<const I*>(b), static_cast<I*>(y));
}

template <class I>
void RunIntExponent(DType dtype, const BroadcastAxes& axes, const void* a, const void* b, void* y,
                    CUstream_st* stream) {
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    IntExponentKernel<<<BlocksFor(axes.count), kThreads, 0, stream>>>(
        axes, static_cast<const T*>(a), static_cast<const I*>(b), static_cast<T*>(y));
  });
}

}  // namespace

void ApplyBinary(Binary function, DType dtype, DType exponent, const BroadcastAxes& axes, const void* a,
                 const void* b, void* y, CUstream_st* stream) {
  if (axes.count == 0) return;
  if (dtype == DType::kInt64) return RunInts<int64_t>(function, axes, a, b, y, stream);
  if (dtype == DType::kInt32) return RunInts<int32_t>(function, axes, a, b, y, stream);
  if (exponent == DType::kInt64) return RunIntExponent<int64_t>(dtype, axes, a, b, y, stream);
  if (exponent == DType::kInt32) return RunIntExponent<int32_t>(dtype, axes, a, b, y, stream);
  switch (function) {
#define WEIR_CASE(Name) \
  case Binary::k##Name: \
    return Run<Name##Function>(dtype, axes, a, b, y, stream);
    WEIR_CUDA_ARITHMETIC(WEIR_CASE)
#undef WEIR_CASE
  }
}

}  // namespace weir::cuda
