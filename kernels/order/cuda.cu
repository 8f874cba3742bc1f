#include <type_traits>

#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/order/cuda.h"

namespace weir::cuda {
namespace {

__device__ inline float Key(float x) { return x; }
__device__ inline float Key(BFloat16 x) { return ToFloat(x); }
__device__ inline double Key(int64_t x) { return static_cast<double>(x); }  // as the reference compares
__device__ inline double Key(int32_t x) { return x; }

// An element and its place in the row; id -1 stands behind everything.
template <class K>
struct Ranked {
  K key;
  int64_t id;
};

template <class K>
__device__ bool Above(K a, K b) {
  return a != a ? b == b : a > b;
}

// Whether a comes before b.
template <class K>
__device__ bool Before(const Ranked<K>& a, const Ranked<K>& b, bool largest, bool last) {
  if (a.id < 0 || b.id < 0) return b.id < 0 && a.id >= 0;
  if (largest ? Above(a.key, b.key) : Above(b.key, a.key)) return true;
  if (largest ? Above(b.key, a.key) : Above(a.key, b.key)) return false;
  return last ? a.id > b.id : a.id < b.id;
}

// The best of the row behind `floor` (all of it when floor.id is -1); every lane of the warp gets it.
template <class T, class K>
__device__ Ranked<K> NextBest(const T* row, const OrderShape& s, const Ranked<K>& floor, bool largest,
                              bool last) {
  Ranked<K> best{K(0), -1};
  for (int64_t id = threadIdx.x % kWarp; id < s.size; id += kWarp) {
    const Ranked<K> candidate{Key(row[id * s.inner]), id};
    if (floor.id >= 0 && !Before(floor, candidate, largest, last)) continue;
    if (Before(candidate, best, largest, last)) best = candidate;
  }
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    const Ranked<K> other{__shfl_xor_sync(~0u, best.key, lane), __shfl_xor_sync(~0u, best.id, lane)};
    if (Before(other, best, largest, last)) best = other;
  }
  return best;
}

template <class T>
__global__ void TopKKernel(OrderShape s, int64_t k, bool largest, const T* x, T* values, int64_t* ids) {
  using Row = GroupOf<kWarp, kThreads>;
  using K = decltype(Key(T{}));
  for (int64_t row = Row::FirstRow(); row < s.rows; row += Row::RowStride()) {
    const int64_t outer = row / s.inner, inner = row - outer * s.inner;
    const T* in = x + outer * s.size * s.inner + inner;
    const int64_t to = outer * k * s.inner + inner;
    Ranked<K> best{K(0), -1};
    for (int64_t rank = 0; rank < k; ++rank) {
      best = NextBest(in, s, best, largest, false);
      if (Row::Lane() != 0) continue;
      if (values != nullptr) values[to + rank * s.inner] = in[best.id * s.inner];
      if (ids != nullptr) ids[to + rank * s.inner] = best.id;
    }
  }
}

// A number as an integer of the same order: NaN on top, -0 as 0; for the smallest, the order turned round.
__device__ inline uint32_t SortKey(float x, bool largest) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  const uint32_t key = x != x ? ~0u : bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return largest ? key : ~key;
}

// Rows of up to 32 * kPerLane activations: a warp holds its row in registers; equal keys leave by lowest id.
template <class T, int kPerLane>
__global__ void TopKRegistersKernel(OrderShape s, int64_t k, bool largest, const T* x, T* values,
                                    int64_t* ids) {
  using Row = GroupOf<kWarp, kThreads>;
  const int lane = Row::Lane();
  for (int64_t row = Row::FirstRow(); row < s.rows; row += Row::RowStride()) {
    const int64_t outer = row / s.inner, inner = row - outer * s.inner;
    const T* in = x + outer * s.size * s.inner + inner;
    uint32_t keys[kPerLane], left = 0;
#pragma unroll
    for (int e = 0; e < kPerLane; ++e) {
      const int id = e * kWarp + lane;
      if (id >= s.size) continue;
      keys[e] = SortKey(ToFloat(in[id * s.inner]), largest);
      left |= 1u << e;
    }
    for (int64_t rank = 0; rank < k; ++rank) {
      uint32_t best = 0;
      int at = -1;
#pragma unroll
      for (int e = 0; e < kPerLane; ++e) {
        if ((left >> e & 1u) == 0 || (at >= 0 && keys[e] <= best)) continue;
        best = keys[e];
        at = e;
      }
      const uint32_t top = __reduce_max_sync(~0u, best);
      const uint32_t id = at >= 0 && best == top ? static_cast<uint32_t>(at * kWarp + lane) : ~0u;
      const uint32_t first = __reduce_min_sync(~0u, id);
      if (id != first) continue;
      left &= ~(1u << at);
      const int64_t to = (outer * k + rank) * s.inner + inner;
      if (values != nullptr) values[to] = in[first * s.inner];
      if (ids != nullptr) ids[to] = first;
    }
  }
}

template <class T>
__global__ void ArgKernel(OrderShape s, bool largest, bool last, const T* x, int64_t* ids) {
  using Row = GroupOf<kWarp, kThreads>;
  using K = decltype(Key(T{}));
  for (int64_t row = Row::FirstRow(); row < s.rows; row += Row::RowStride()) {
    const int64_t outer = row / s.inner, inner = row - outer * s.inner;
    const Ranked<K> best =
        NextBest(x + outer * s.size * s.inner + inner, s, Ranked<K>{K(0), -1}, largest, last);
    if (Row::Lane() == 0) ids[row] = best.id;
  }
}

template <class T>
__global__ void CumSumKernel(OrderShape s, CumSumOptions options, const T* x, T* y) {
  for (int64_t row = FirstIndex(); row < s.rows; row += IndexStride()) {
    const int64_t base = row / s.inner * s.size * s.inner + row % s.inner;
    T sum = 0;
    for (int64_t step = 0; step < s.size; ++step) {
      const int64_t at = base + (options.reverse ? s.size - 1 - step : step) * s.inner;
      const T next = sum + x[at];
      y[at] = options.exclusive ? sum : next;
      sum = next;
    }
  }
}

template <class Body>
void WithNumber(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kInt64:
      return body(int64_t{});
    case DType::kInt32:
      return body(int32_t{});
    case DType::kBFloat16:
      return body(BFloat16{});
    default:
      return body(float{});
  }
}

}  // namespace

void TopK(DType dtype, const OrderShape& s, int64_t k, bool largest, const void* x, void* values,
          int64_t* ids, CUstream_st* stream) {
  if (s.rows * k == 0) return;
  WithNumber(dtype, [&](auto type) {
    using T = decltype(type);
    auto kernel = TopKKernel<T>;
    if constexpr (sizeof(T) < sizeof(int64_t) && !std::is_same_v<T, int32_t>) {
      if (s.size <= 512) kernel = s.size <= 128 ? TopKRegistersKernel<T, 4> : TopKRegistersKernel<T, 16>;
    }
    kernel<<<BlocksFor(s.rows, kThreads / kWarp), kThreads, 0, stream>>>(
        s, k, largest, static_cast<const T*>(x), static_cast<T*>(values), ids);
  });
}

void ArgBest(DType dtype, const OrderShape& s, bool largest, bool last, const void* x, int64_t* ids,
             CUstream_st* stream) {
  if (s.rows == 0) return;
  WithNumber(dtype, [&](auto type) {
    using T = decltype(type);
    ArgKernel<<<BlocksFor(s.rows, kThreads / kWarp), kThreads, 0, stream>>>(s, largest, last,
                                                                            static_cast<const T*>(x), ids);
  });
}

void CumSum(DType dtype, const OrderShape& s, CumSumOptions options, const void* x, void* y,
            CUstream_st* stream) {
  if (s.rows * s.size == 0) return;
  const unsigned blocks = BlocksFor(s.rows);
  if (dtype == DType::kFloat32) {
    CumSumKernel<<<blocks, kThreads, 0, stream>>>(s, options, static_cast<const float*>(x),
                                                  static_cast<float*>(y));
  } else if (dtype == DType::kInt32) {
    CumSumKernel<<<blocks, kThreads, 0, stream>>>(s, options, static_cast<const uint32_t*>(x),
                                                  static_cast<uint32_t*>(y));
  } else {
    CumSumKernel<<<blocks, kThreads, 0, stream>>>(s, options, static_cast<const uint64_t*>(x),
                                                  static_cast<uint64_t*>(y));
  }
}

}  // namespace weir::cuda
