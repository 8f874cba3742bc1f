#include "kernels/device/launch.cuh"
#include "kernels/tree_reduce/cuda.h"

namespace weir::cuda {
namespace {

struct Addends {
  const float* own;
  const float* rows;
  int64_t count;
  int rank;

  __device__ float operator()(int r, int64_t k) const { return r == rank ? own[k] : rows[r * count + k]; }
};

// t(a..b) = t(a..m) + t(m..b), m = a + (b-a)/2, unrolled.
template <int kFirst, int kLast>
__device__ float Tree(const Addends& addends, int64_t k) {
  if constexpr (kLast - kFirst == 1) {
    return addends(kFirst, k);
  } else {
    constexpr int kMiddle = kFirst + (kLast - kFirst) / 2;
    return Tree<kFirst, kMiddle>(addends, k) + Tree<kMiddle, kLast>(addends, k);
  }
}

template <int kRanks>
__global__ void AddTreeKernel(Addends addends, float* out) {
  for (int64_t k = FirstIndex(); k < addends.count; k += IndexStride()) out[k] = Tree<0, kRanks>(addends, k);
}

__device__ float TreeOf(const Addends& addends, int first, int last, int64_t k) {
  if (last - first == 1) return addends(first, k);
  const int middle = first + (last - first) / 2;
  const float low = TreeOf(addends, first, middle, k);
  return low + TreeOf(addends, middle, last, k);
}

__global__ void AddAnyTreeKernel(Addends addends, int ranks, float* out) {
  for (int64_t k = FirstIndex(); k < addends.count; k += IndexStride()) out[k] = TreeOf(addends, 0, ranks, k);
}

}  // namespace

void AddTree(float* own, const float* rows, int64_t ranks, int64_t rank, int64_t count, CUstream_st* stream) {
  if (count == 0) return;
  const Addends addends{own, rows, count, static_cast<int>(rank)};
  const unsigned blocks = BlocksFor(count);
  switch (ranks) {
    case 2: AddTreeKernel<2><<<blocks, kThreads, 0, stream>>>(addends, own); break;
    case 4: AddTreeKernel<4><<<blocks, kThreads, 0, stream>>>(addends, own); break;
    case 8: AddTreeKernel<8><<<blocks, kThreads, 0, stream>>>(addends, own); break;
    default: AddAnyTreeKernel<<<blocks, kThreads, 0, stream>>>(addends, static_cast<int>(ranks), own);
  }
}

}  // namespace weir::cuda
