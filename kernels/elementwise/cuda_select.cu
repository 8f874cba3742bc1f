#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/elementwise/cuda.h"

namespace weir::cuda {
namespace {

template <int kOperands>
struct Places {
  int64_t at[kOperands];
  __device__ Places(const BroadcastAxes& axes, int64_t index) {
    for (int o = 0; o < kOperands; ++o) at[o] = 0;
    for (int i = axes.rank - 1; i >= 0; --i) {
      const int64_t rest = i > 0 ? index / axes.size[i] : 0, digit = index - rest * axes.size[i];
      for (int o = 0; o < kOperands; ++o) at[o] += digit * axes.stride[o][i];
      index = rest;
    }
  }
};

template <class A>
__device__ A Widen(A x) {
  return x;
}
__device__ inline float Widen(BFloat16 x) { return ToFloat(x); }

template <class A>
__device__ bool Holds(Logic function, A a, A b) {
  switch (function) {
    case Logic::kEqual:
      return a == b;
    case Logic::kLess:
      return a < b;
    case Logic::kLessOrEqual:
      return a <= b;
    case Logic::kGreater:
      return a > b;
    case Logic::kGreaterOrEqual:
      return a >= b;
    case Logic::kAnd:
      return a != A(0) && b != A(0);
    case Logic::kOr:
      return a != A(0) || b != A(0);
    default:
      return (a != A(0)) != (b != A(0));
  }
}

template <class T>
__global__ void LogicKernel(Logic function, BroadcastAxes axes, const T* a, const T* b, uint8_t* y) {
  for (int64_t k = FirstIndex(); k < axes.count; k += IndexStride()) {
    const Places<2> place(axes, k);
    y[k] = Holds(function, Widen(a[place.at[0]]), Widen(b[place.at[1]]));
  }
}

template <class T>
void RunLogic(Logic function, const BroadcastAxes& axes, const void* a, const void* b, uint8_t* y,
              CUstream_st* stream) {
  LogicKernel<<<BlocksFor(axes.count), kThreads, 0, stream>>>(function, axes, static_cast<const T*>(a),
                                                              static_cast<const T*>(b), y);
}

__global__ void NotKernel(const uint8_t* x, int64_t count, uint8_t* y) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) y[k] = x[k] == 0;
}

template <class E>
__global__ void WhereKernel(BroadcastAxes axes, const uint8_t* condition, const E* a, const E* b, E* y) {
  for (int64_t k = FirstIndex(); k < axes.count; k += IndexStride()) {
    const Places<3> place(axes, k);
    y[k] = condition[place.at[0]] != 0 ? a[place.at[1]] : b[place.at[2]];
  }
}

template <class E>
void RunWhere(const BroadcastAxes& axes, const uint8_t* condition, const void* a, const void* b, void* y,
              CUstream_st* stream) {
  WhereKernel<<<BlocksFor(axes.count), kThreads, 0, stream>>>(axes, condition, static_cast<const E*>(a),
                                                              static_cast<const E*>(b), static_cast<E*>(y));
}

// NaN stays; when the bounds cross every number is `high`.
template <class T>
__global__ void ClipKernel(const T* x, int64_t count, const T* low, const T* high, T* y) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    T v = x[k];
    if (low != nullptr && Widen(v) < Widen(*low)) v = *low;
    if (high != nullptr && Widen(v) > Widen(*high)) v = *high;
    y[k] = v;
  }
}

template <class T>
void RunClip(const void* x, int64_t count, const void* low, const void* high, void* y, CUstream_st* stream) {
  ClipKernel<<<BlocksFor(count), kThreads, 0, stream>>>(static_cast<const T*>(x), count,
                                                        static_cast<const T*>(low),
                                                        static_cast<const T*>(high), static_cast<T*>(y));
}

template <class T>
__global__ void ScaleKernel(T* y, int64_t count, float factor) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) y[k] = FromFloat<T>(ToFloat(y[k]) * factor);
}

}  // namespace

void ApplyLogic(Logic function, DType dtype, const BroadcastAxes& axes, const void* a, const void* b,
                uint8_t* y, CUstream_st* stream) {
  if (axes.count == 0) return;
  switch (dtype) {
    case DType::kFloat32:
      return RunLogic<float>(function, axes, a, b, y, stream);
    case DType::kBFloat16:
      return RunLogic<BFloat16>(function, axes, a, b, y, stream);
    case DType::kInt64:
      return RunLogic<int64_t>(function, axes, a, b, y, stream);
    case DType::kInt32:
      return RunLogic<int32_t>(function, axes, a, b, y, stream);
    default:
      return RunLogic<uint8_t>(function, axes, a, b, y, stream);
  }
}

void ApplyNot(const uint8_t* x, int64_t count, uint8_t* y, CUstream_st* stream) {
  if (count > 0) NotKernel<<<BlocksFor(count), kThreads, 0, stream>>>(x, count, y);
}

void ApplyWhere(const BroadcastAxes& axes, int element_bytes, const uint8_t* condition, const void* a,
                const void* b, void* y, CUstream_st* stream) {
  if (axes.count == 0) return;
  switch (element_bytes) {
    case 1:
      return RunWhere<uint8_t>(axes, condition, a, b, y, stream);
    case 2:
      return RunWhere<uint16_t>(axes, condition, a, b, y, stream);
    case 4:
      return RunWhere<uint32_t>(axes, condition, a, b, y, stream);
    default:
      return RunWhere<uint64_t>(axes, condition, a, b, y, stream);
  }
}

void ApplyClip(DType dtype, const void* x, int64_t count, const void* low, const void* high, void* y,
               CUstream_st* stream) {
  if (count == 0) return;
  switch (dtype) {
    case DType::kFloat32:
      return RunClip<float>(x, count, low, high, y, stream);
    case DType::kBFloat16:
      return RunClip<BFloat16>(x, count, low, high, y, stream);
    case DType::kInt32:
      return RunClip<int32_t>(x, count, low, high, y, stream);
    default:
      return RunClip<int64_t>(x, count, low, high, y, stream);
  }
}

void ApplyScale(DType dtype, void* y, int64_t count, float factor, CUstream_st* stream) {
  if (count == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    ScaleKernel<<<BlocksFor(count), kThreads, 0, stream>>>(static_cast<T*>(y), count, factor);
  });
}

}  // namespace weir::cuda
