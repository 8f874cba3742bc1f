#include "kernels/accumulate/cuda.h"
#include "kernels/device/launch.cuh"

namespace weir::cuda {
namespace {

__global__ void AccumulateKernel(float* acc, const float* g, int64_t count) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) acc[k] += g[k];
}

}  // namespace

void Accumulate(float* acc, const float* g, int64_t count, CUstream_st* stream) {
  if (count > 0) AccumulateKernel<<<BlocksFor(count), kThreads, 0, stream>>>(acc, g, count);
}

}  // namespace weir::cuda
