#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/pipelined_llep/cuda.h"

namespace weir::cuda {
namespace {

// A block per run.
__global__ void ExpandRunsKernel(const int64_t* runs, int64_t count, int64_t* to, int64_t* expert) {
  for (int64_t run = blockIdx.x; run < count; run += gridDim.x) {
    const int64_t *at = runs + run * 4, from = at[0], there = at[1], rows = at[2];
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x) {
      to[from + r] = there + r;
      if (expert != nullptr) expert[there + r] = at[3];
    }
  }
}

// A warp per row; U is what one thread moves at a time.
template <class U>
__global__ void ScatterRowsKernel(const U* rows, const int64_t* at, int64_t count, int64_t width,
                                  U* to) {
  const int64_t warps = IndexStride() / kWarp;
  for (int64_t row = FirstIndex() / kWarp; row < count; row += warps) {
    U* target = to + at[row] * width;
    for (int64_t j = threadIdx.x % kWarp; j < width; j += kWarp) target[j] = rows[row * width + j];
  }
}

__global__ void GatherFloatsKernel(const float* values, const int64_t* at, int64_t count,
                                   float* out) {
  for (int64_t r = FirstIndex(); r < count; r += IndexStride()) out[r] = values[at[r]];
}

__global__ void ScatterFloatsKernel(const float* rows, const int64_t* at, int64_t count,
                                    float* values) {
  for (int64_t r = FirstIndex(); r < count; r += IndexStride()) values[at[r]] = rows[r];
}

}  // namespace

void ExpandRuns(const int64_t* runs, int64_t count, int64_t* to, int64_t* expert,
                CUstream_st* stream) {
  if (count == 0) return;
  ExpandRunsKernel<<<BlocksFor(count, 1), kThreads, 0, stream>>>(runs, count, to, expert);
}

void ScatterRows(const void* rows, const int64_t* at, int64_t count, int64_t bytes, void* to,
                 CUstream_st* stream) {
  if (count * bytes == 0) return;
  const auto launch = [&](auto unit) {
    using U = decltype(unit);
    ScatterRowsKernel<U><<<BlocksFor(count * kWarp), kThreads, 0, stream>>>(
        static_cast<const U*>(rows), at, count, bytes / static_cast<int64_t>(sizeof(U)),
        static_cast<U*>(to));
  };
  if (bytes % 16 == 0 && IsAligned(rows) && IsAligned(to)) return launch(uint4{});
  launch(uint16_t{});
}

void GatherFloats(const float* values, const int64_t* at, int64_t count, float* out,
                  CUstream_st* stream) {
  if (count == 0) return;
  GatherFloatsKernel<<<BlocksFor(count), kThreads, 0, stream>>>(values, at, count, out);
}

void ScatterFloats(const float* rows, const int64_t* at, int64_t count, float* values,
                   CUstream_st* stream) {
  if (count == 0) return;
  ScatterFloatsKernel<<<BlocksFor(count), kThreads, 0, stream>>>(rows, at, count, values);
}

}  // namespace weir::cuda
