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
      if (to != nullptr) to[from + r] = there + r;
      if (expert != nullptr) expert[from + r] = at[3];
    }
  }
}

// A block per token, so that its row is read once; U is what one thread moves at a time.
template <class U>
__global__ void PackRowsKernel(SlotPlaces slots, const U* from, int64_t width, U* rows) {
  for (int64_t t = blockIdx.x; t < slots.tokens; t += gridDim.x) {
    const int64_t* row_at = slots.row_at + t * slots.k;
    const U* source = from + slots.routes[row_at[0]] / slots.k * width;
    for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      const U value = source[j];
      for (int64_t slot = 0; slot < slots.k; ++slot) rows[row_at[slot] * width + j] = value;
    }
  }
}

__global__ void PackSlotsKernel(SlotPlaces slots, const float* values, float* rows) {
  for (int64_t at = FirstIndex(); at < slots.tokens * slots.k; at += IndexStride()) {
    const int64_t row = slots.row_at[at];
    rows[row] = values[slots.routes[row]];
  }
}

__global__ void UnpackSlotsKernel(SlotPlaces slots, const float* rows, float* values) {
  for (int64_t at = FirstIndex(); at < slots.tokens * slots.k; at += IndexStride()) {
    const int64_t row = slots.row_at[at];
    values[slots.routes[row]] = rows[row];
  }
}

}  // namespace

void ExpandRuns(const int64_t* runs, int64_t count, int64_t* to, int64_t* expert,
                CUstream_st* stream) {
  if (count == 0) return;
  ExpandRunsKernel<<<BlocksFor(count, 1), kThreads, 0, stream>>>(runs, count, to, expert);
}

void PackRows(const SlotPlaces& slots, const void* from, int64_t bytes, void* rows,
              CUstream_st* stream) {
  if (slots.tokens * slots.k * bytes == 0) return;
  const auto launch = [&](auto unit) {
    using U = decltype(unit);
    PackRowsKernel<U><<<BlocksFor(slots.tokens, 1), kThreads, 0, stream>>>(
        slots, static_cast<const U*>(from), bytes / static_cast<int64_t>(sizeof(U)),
        static_cast<U*>(rows));
  };
  if (bytes % 16 == 0 && IsAligned(from) && IsAligned(rows)) return launch(uint4{});
  launch(uint16_t{});
}

void PackSlots(const SlotPlaces& slots, const float* values, float* rows, CUstream_st* stream) {
  if (slots.tokens * slots.k == 0) return;
  PackSlotsKernel<<<BlocksFor(slots.tokens * slots.k), kThreads, 0, stream>>>(slots, values, rows);
}

void UnpackSlots(const SlotPlaces& slots, const float* rows, float* values, CUstream_st* stream) {
  if (slots.tokens * slots.k == 0) return;
  UnpackSlotsKernel<<<BlocksFor(slots.tokens * slots.k), kThreads, 0, stream>>>(slots, rows,
                                                                                values);
}

}  // namespace weir::cuda
