#include <cuda_fp16.h>

#include "kernels/cast/cuda.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"

namespace weir::cuda {
namespace {

template <class I>
__device__ int64_t Saturate(double value, double low, double high) {
  if (isnan(value)) return 0;
  if (value <= low) return static_cast<int64_t>(static_cast<I>(low));
  if (value >= high) return static_cast<int64_t>(~I{0} ^ (I(-1) < I(0) ? I{1} << (sizeof(I) * 8 - 1) : I{0}));
  return static_cast<int64_t>(static_cast<I>(value));
}

__device__ int64_t FloatToInt(double value, DType to) {
  switch (to) {
    case DType::kBool:
      return value != 0;
    case DType::kInt32:
      return Saturate<int32_t>(value, -2147483648.0, 2147483647.0);
    case DType::kInt16:
      return Saturate<int32_t>(fmin(fmax(value, -32768.0), 32767.0), -32768.0, 2147483647.0);
    case DType::kInt8:
      return Saturate<int32_t>(fmin(fmax(value, -128.0), 127.0), -128.0, 2147483647.0);
    case DType::kUInt64:
      return Saturate<uint64_t>(value, 0.0, 18446744073709551616.0);
    case DType::kUInt32:
      return Saturate<uint32_t>(value, 0.0, 4294967295.0);
    case DType::kUInt16:
      return Saturate<uint32_t>(fmin(value, 65535.0), 0.0, 4294967295.0);
    case DType::kUInt8:
      return Saturate<uint32_t>(fmin(value, 255.0), 0.0, 4294967295.0);
    default:
      return Saturate<int64_t>(value, -9223372036854775808.0, 9223372036854775808.0);
  }
}

__device__ bool IsFloatType(DType type) {
  return type == DType::kFloat32 || type == DType::kFloat64 || type == DType::kFloat16 ||
         type == DType::kBFloat16;
}

__device__ double LoadFloat(DType type, const void* x, int64_t k) {
  switch (type) {
    case DType::kFloat32:
      return static_cast<const float*>(x)[k];
    case DType::kFloat64:
      return static_cast<const double*>(x)[k];
    case DType::kFloat16:
      return __half2float(static_cast<const __half*>(x)[k]);
    default:
      return __bfloat162float(static_cast<const BFloat16*>(x)[k]);
  }
}

__device__ int64_t LoadInt(DType type, const void* x, int64_t k) {
  switch (type) {
    case DType::kInt32:
      return static_cast<const int32_t*>(x)[k];
    case DType::kInt16:
      return static_cast<const int16_t*>(x)[k];
    case DType::kInt8:
      return static_cast<const int8_t*>(x)[k];
    case DType::kUInt32:
      return static_cast<const uint32_t*>(x)[k];
    case DType::kUInt16:
      return static_cast<const uint16_t*>(x)[k];
    case DType::kUInt8:
    case DType::kBool:
      return static_cast<const uint8_t*>(x)[k];
    default:
      return static_cast<const int64_t*>(x)[k];
  }
}

// From int64 straight to the float type: going through double would round twice.
template <class W>
__device__ void StoreFloat(DType type, W value, void* y, int64_t k) {
  switch (type) {
    case DType::kFloat32:
      static_cast<float*>(y)[k] = static_cast<float>(value);
      return;
    case DType::kFloat64:
      static_cast<double*>(y)[k] = static_cast<double>(value);
      return;
    case DType::kFloat16:
      static_cast<__half*>(y)[k] = __float2half_rn(static_cast<float>(value));
      return;
    default:
      static_cast<BFloat16*>(y)[k] = __float2bfloat16_rn(static_cast<float>(value));
  }
}

__device__ void StoreInt(DType type, int64_t value, void* y, int64_t k) {
  switch (type) {
    case DType::kInt64:
    case DType::kUInt64:
      static_cast<int64_t*>(y)[k] = value;
      return;
    case DType::kInt32:
    case DType::kUInt32:
      static_cast<int32_t*>(y)[k] = static_cast<int32_t>(value);
      return;
    case DType::kInt16:
    case DType::kUInt16:
      static_cast<int16_t*>(y)[k] = static_cast<int16_t>(value);
      return;
    default:
      static_cast<int8_t*>(y)[k] = static_cast<int8_t>(type == DType::kBool ? value != 0 : value);
  }
}

// x and y may be one buffer: an element is read before it is written, by the same thread.
__global__ void CastKernel(DType from, DType to, const void* x, int64_t count, void* y) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) {
    if (IsFloatType(from)) {
      const double value = LoadFloat(from, x, k);
      IsFloatType(to) ? StoreFloat(to, value, y, k) : StoreInt(to, FloatToInt(value, to), y, k);
    } else {
      const int64_t value = LoadInt(from, x, k);
      IsFloatType(to) ? StoreFloat(to, value, y, k) : StoreInt(to, value, y, k);
    }
  }
}

// Between float32 and bfloat16, eight at a time.
template <class From, class To>
__global__ void CastPacksKernel(const From* x, int64_t count, int64_t packs, To* y) {
  using In = Pack<From, 16 / sizeof(To)>;
  using Out = Pack<To, In::size>;
  for (int64_t k = FirstIndex(); k < packs; k += IndexStride()) {
    Out out;
    if constexpr (sizeof(In) > 16) {  // two loads of 16 bytes
      const Pack<From> low = LoadPack(x + k * In::size), high = LoadPack(x + k * In::size + In::size / 2);
#pragma unroll
      for (int i = 0; i < In::size / 2; ++i) {
        out.at[i] = FromFloat<To>(ToFloat(low.at[i]));
        out.at[i + In::size / 2] = FromFloat<To>(ToFloat(high.at[i]));
      }
    } else {
      const In in = *reinterpret_cast<const In*>(x + k * In::size);
#pragma unroll
      for (int i = 0; i < In::size; ++i) out.at[i] = FromFloat<To>(ToFloat(in.at[i]));
    }
    *reinterpret_cast<Out*>(y + k * In::size) = out;
  }
  for (int64_t k = packs * In::size + FirstIndex(); k < count; k += IndexStride())
    y[k] = FromFloat<To>(ToFloat(x[k]));
}

template <class From, class To>
void RunPacks(const void* x, int64_t count, void* y, CUstream_st* stream) {
  const int64_t packs = IsAligned(x) && IsAligned(y) ? count / static_cast<int64_t>(16 / sizeof(To)) : 0;
  CastPacksKernel<<<BlocksFor(packs > 0 ? packs : count), kThreads, 0, stream>>>(
      static_cast<const From*>(x), count, packs, static_cast<To*>(y));
}

}  // namespace

void Cast(DType from, DType to, const void* x, int64_t count, void* y, CUstream_st* stream) {
  if (count == 0) return;
  if (from == DType::kFloat32 && to == DType::kBFloat16)
    return RunPacks<float, BFloat16>(x, count, y, stream);
  if (from == DType::kBFloat16 && to == DType::kFloat32)
    return RunPacks<BFloat16, float>(x, count, y, stream);
  CastKernel<<<BlocksFor(count), kThreads, 0, stream>>>(from, to, x, count, y);
}

}  // namespace weir::cuda
