#include "kernels/device/launch.cuh"
#include "kernels/ring_dtp/cuda.h"

namespace weir::cuda {
namespace {

__global__ void AddIntoKernel(float* to, const float* from, int64_t count) {
  for (int64_t k = FirstIndex(); k < count; k += IndexStride()) to[k] += from[k];
}

}  // namespace

void AddInto(float* to, const float* from, int64_t count, CUstream_st* stream) {
  if (count > 0) AddIntoKernel<<<BlocksFor(count), kThreads, 0, stream>>>(to, from, count);
}

}  // namespace weir::cuda
