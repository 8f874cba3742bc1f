// Reductions over the threads that share a row: a part of a warp (kGroup a power of two up to 32) or a
// whole block of kGroup threads. The order of a sum depends on the group's size alone. Every thread gets
// the result.
#pragma once
#include <cstdint>

namespace weir::cuda {

inline constexpr int kWarp = 32;

struct SumStep {
  template <class A>
  __device__ A operator()(A a, A b) const {
    return a + b;
  }
};
struct MaxStep {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <int kGroup, class A, class Step>
__device__ A Reduce(A value, Step step) {
  constexpr int kLanes = kGroup < kWarp ? kGroup : kWarp;
  // Only the group's own lanes: its neighbours in the warp may be at another row, or done.
  const unsigned mask = (kLanes == kWarp ? ~0u : (1u << (kLanes % kWarp)) - 1)
                        << (threadIdx.x % kWarp / kLanes * kLanes);
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) value = step(value, __shfl_xor_sync(mask, value, lane));
  if constexpr (kGroup > kWarp) {
    __shared__ A warps[kGroup / kWarp];
    __syncthreads();
    if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = warps[0];
    for (int w = 1; w < kGroup / kWarp; ++w) value = step(value, warps[w]);
  }
  return value;
}

// Rows in flight per block of kBlock threads, the first row of this thread's group and its place there.
template <int kGroup, int kBlock>
struct GroupOf {
  static constexpr int groups = kBlock / kGroup;
  __device__ static int64_t FirstRow() {
    return static_cast<int64_t>(blockIdx.x) * groups + threadIdx.x / kGroup;
  }
  __device__ static int64_t RowStride() { return static_cast<int64_t>(gridDim.x) * groups; }
  __device__ static int Lane() { return static_cast<int>(threadIdx.x % kGroup); }
};

}  // namespace weir::cuda
