#include "kernels/device/ids.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/embedding/cuda.h"

namespace weir::cuda {
namespace {

constexpr int kSortThreads = 1024;

// The first place in [low, high) whose id is above `id`, or `high`.
__device__ int UpperBound(const uint64_t* keys, int low, int high, uint64_t id) {
  while (low < high) {
    const int middle = (low + high) / 2;
    if (keys[middle] / kEmbeddingBlock > id) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Bitonic sort of one block's keys id * 4096 + position; keys of absent tokens come last.
__global__ void SortKernel(const int64_t* ids, int64_t tokens, int64_t rows, SortedTokens sorted) {
  __shared__ uint64_t keys[kEmbeddingBlock];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kEmbeddingBlock;
  const int64_t left = tokens - first;
  const int count = static_cast<int>(left < kEmbeddingBlock ? left : kEmbeddingBlock);
  int size = 1;
  while (size < count) size *= 2;
  for (int i = threadIdx.x; i < size; i += kSortThreads) {
    keys[i] = i < count ? static_cast<uint64_t>(CheckedId(ids[first + i], rows, first + i, false)) *
                                  kEmbeddingBlock +
                              static_cast<uint64_t>(i)
                        : ~uint64_t{0};
  }
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size; i += kSortThreads) {
        const int other = i ^ step;
        if (other <= i) continue;
        const bool ascending = (i & run) == 0;
        const uint64_t a = keys[i], b = keys[other];
        if ((a > b) != ascending) continue;
        keys[i] = b;
        keys[other] = a;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kSortThreads) {
    sorted.order[first + i] = static_cast<int32_t>(keys[i] % kEmbeddingBlock);
    const uint64_t id = keys[i] / kEmbeddingBlock;
    const bool starts = i == 0 || keys[i - 1] / kEmbeddingBlock != id;
    sorted.runs[first + i] = starts ? UpperBound(keys, i, count, id) - i : 0;
  }
}

// The first sorted token of every id sums the id's tokens; blockIdx.y splits the columns.
template <class T>
__global__ void AddKernel(const int64_t* ids, SortedTokens sorted, const T* dy, int64_t count, int64_t h,
                          float* dw) {
  for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
    const int run = sorted.runs[at];
    if (run == 0) continue;
    const int32_t* order = sorted.order + at;
    const int64_t id = ids[order[0]];
    for (int64_t j = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; j < h;
         j += static_cast<int64_t>(gridDim.y) * blockDim.x) {
      float sum = 0;
#pragma unroll 8
      for (int k = 0; k < run; ++k) sum += ToFloat(dy[order[k] * h + j]);
      dw[id * h + j] += sum;
    }
  }
}

}  // namespace

void SortTokens(const int64_t* ids, int64_t tokens, int64_t rows, const SortedTokens& sorted,
                CUstream_st* stream) {
  const int64_t blocks = (tokens + kEmbeddingBlock - 1) / kEmbeddingBlock;
  if (blocks > 0)
    SortKernel<<<static_cast<unsigned>(blocks), kSortThreads, 0, stream>>>(ids, tokens, rows, sorted);
}

void AddEmbeddingGradient(const int64_t* ids, const SortedTokens& sorted, DType dtype, const void* dy,
                          int64_t tokens, int64_t h, float* dw, CUstream_st* stream) {
  if (h == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t first = 0; first < tokens; first += kEmbeddingBlock) {
      const int64_t left = tokens - first, count = left < kEmbeddingBlock ? left : kEmbeddingBlock;
      const dim3 grid(static_cast<unsigned>(count), static_cast<unsigned>((h + kThreads - 1) / kThreads));
      AddKernel<<<grid, kThreads, 0, stream>>>(ids + first, {sorted.order + first, sorted.runs + first},
                                               static_cast<const T*>(dy) + first * h, count, h, dw);
    }
  });
}

}  // namespace weir::cuda
