#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/gradient_norm/cuda.h"

namespace weir::cuda {
namespace {

// Four chains per thread, then the tree of Reduce; products of 24-bit factors are exact.
__global__ void SquareKernel(const float* x, int64_t count, double* blocks) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kNormBlock;
  const int64_t last = first + kNormBlock < count ? first + kNormBlock : count;
  double sums[4] = {};
  const int64_t packs = reinterpret_cast<uintptr_t>(x) % 16 == 0 ? (last - first) / 4 : 0;
  for (int64_t k = threadIdx.x; k < packs; k += kThreads) {
    const Pack<float> pack = LoadPack(x + first + 4 * k);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += static_cast<double>(pack.at[i]) * static_cast<double>(pack.at[i]);
  }
  for (int64_t k = first + 4 * packs + threadIdx.x; k < last; k += kThreads)
    sums[0] += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  const double sum = Reduce<kThreads>((sums[0] + sums[1]) + (sums[2] + sums[3]), SumStep{});
  if (threadIdx.x == 0) blocks[blockIdx.x] = sum;
}

constexpr int kRootThreads = 1024;
__global__ void SumKernel(const double* values, int64_t count, bool root, double* out) {
  double sum = 0;
  for (int64_t k = threadIdx.x; k < count; k += kRootThreads) sum += values[k];
  sum = Reduce<kRootThreads>(sum, SumStep{});
  if (threadIdx.x == 0) *out = root ? sqrt(sum) : sum;
}

__global__ void ClipKernel(const double* norm, double max_norm, float* coefficient) {
  const double value = max_norm > 0 ? fmin(1.0, max_norm / (*norm + 1e-6)) : 1.0;
  *coefficient = isfinite(*norm) ? static_cast<float>(value) : __int_as_float(0x7fc00000);
}

}  // namespace

void SquareBlocks(const float* x, int64_t count, double* blocks, CUstream_st* stream) {
  const int64_t parts = (count + kNormBlock - 1) / kNormBlock;
  if (parts > 0) SquareKernel<<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(x, count, blocks);
}

void SumOf(const double* values, int64_t count, double* out, CUstream_st* stream) {
  SumKernel<<<1, kRootThreads, 0, stream>>>(values, count, false, out);
}

void RootOfSum(const double* values, int64_t count, double* out, CUstream_st* stream) {
  SumKernel<<<1, kRootThreads, 0, stream>>>(values, count, true, out);
}

void ClipCoefficient(const double* norm, double max_norm, float* coefficient, CUstream_st* stream) {
  ClipKernel<<<1, 1, 0, stream>>>(norm, max_norm, coefficient);
}

}  // namespace weir::cuda
