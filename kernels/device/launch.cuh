// Sizes of launches and indices of threads, 64-bit.
#pragma once
#include <cstdint>

namespace weir::cuda {

inline constexpr int kThreads = 256;
inline constexpr int64_t kMaxBlocks = 132 * 16;  // grid-stride loops cover the rest

inline unsigned BlocksFor(int64_t count, int64_t per_block = kThreads) {
  const int64_t blocks = (count + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

__device__ inline int64_t FirstIndex() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t IndexStride() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace weir::cuda
