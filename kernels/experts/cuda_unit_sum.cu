// Weight gradients of experts in bfloat16: one read and one write of the accumulator, whatever the
// units.
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/tensor_core.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda {
namespace {

constexpr int kM = 128, kN = 128, kK = 32, kStages = 4;  // a block's tile of dW, rows at a time
constexpr int kWarpM = 64, kWarpN = 32;                  // 2 x 4 warps
constexpr int kMs = kWarpM / 16, kNs = kWarpN / 8;       // products of a warp
constexpr int kStageElements = kK * (kM + kN);

// The rows of one expert, kK or fewer of one unit at a time.
struct UnitWalk {
  const UnitRun& units;
  int64_t unit, end, row = 0, unit_end = 0;

  __device__ UnitWalk(const UnitRun& u, int64_t expert) : units(u), unit(u.begin), end(u.end) {
    if (u.first == nullptr) return;
    unit = max(unit, u.first[expert]);
    end = min(end, u.first[expert + 1]);
  }
  __device__ bool Empty() const { return unit >= end; }
  // False when no rows are left.
  __device__ bool Next(int64_t& begin, int& rows, bool& last) {
    if (row == unit_end) {
      if (Empty()) return false;
      row = units.row[unit] - units.origin;
      unit_end = units.row[++unit] - units.origin;
    }
    begin = row;
    rows = static_cast<int>(min(static_cast<int64_t>(kK), unit_end - row));
    row += rows;
    last = row == unit_end;
    return true;
  }
};

// [kK, kM or kN] of an operand [rows, width] into shared memory, zero outside.
__device__ void CopyTile(const BFloat16* from, int64_t width, int64_t row, int rows, int64_t column,
                         BFloat16* to) {
  constexpr int kChunks = kM / 8;
#pragma unroll
  for (int e = 0; e < kK * kChunks / kThreads; ++e) {
    const int at = static_cast<int>(threadIdx.x) + e * kThreads, r = at / kChunks,
              chunk = at % kChunks;
    const int64_t c = column + chunk * 8;
    const bool inside = r < rows && c < width;
    CopyAsync(to + Swizzled<kM>(r, chunk), from + (inside ? (row + r) * width + c : 0), inside);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    UnitSumKernel(UnitRun units, const BFloat16* dy, int64_t outputs, const BFloat16* x,
                  int64_t inputs, float* dw) {
  static_assert(kM == kN, "one CopyTile serves both operands");
  extern __shared__ __align__(128) BFloat16 shared[];
  const int64_t expert = blockIdx.z, m = static_cast<int64_t>(blockIdx.x) * kM,
                n = static_cast<int64_t>(blockIdx.y) * kN;
  UnitWalk ahead(units, expert), walk = ahead;
  if (walk.Empty()) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp / 4 * kWarpM, warp_n = warp % 4 * kWarpN;
  float total[kMs][kNs][4], unit[kMs][kNs][4];
  // Visits the pairs of neighbouring columns that this thread owns.
  const auto for_each_pair = [&](auto body) {
#pragma unroll
    for (int i = 0; i < kMs; ++i) {
#pragma unroll
      for (int j = 0; j < kNs; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t row = m + warp_m + i * 16 + half * 8 + lane / 4,
                        column = n + warp_n + j * 8 + lane % 4 * 2;
          float2* at = reinterpret_cast<float2*>(dw + (expert * outputs + row) * inputs + column);
          body(row < outputs && column < inputs, at, total[i][j][half * 2],
               total[i][j][half * 2 + 1]);
        }
      }
    }
  };
  for_each_pair([](bool inside, const float2* at, float& a, float& b) {
    const float2 value = inside ? *at : float2{0, 0};
    a = value.x;
    b = value.y;
  });
#pragma unroll
  for (int i = 0; i < kMs; ++i) {
#pragma unroll
    for (int j = 0; j < kNs; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) unit[i][j][v] = 0;
    }
  }
  int64_t begin;
  int rows;
  bool last;
  const auto fetch = [&](int stage) {
    if (ahead.Next(begin, rows, last)) {
      BFloat16* to = shared + stage * kStageElements;
      CopyTile(dy, outputs, begin, rows, m, to);
      CopyTile(x, inputs, begin, rows, n, to + kK * kM);
    }
    CommitCopies();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);
  for (int stage = 0; walk.Next(begin, rows, last); stage = (stage + 1) % kStages) {
    const bool unit_done = last;
    WaitForCopies<kStages - 2>();
    __syncthreads();
    fetch((stage + kStages - 1) % kStages);
    const BFloat16* a_tile = shared + stage * kStageElements;
    const BFloat16* b_tile = a_tile + kK * kM;
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
      uint32_t a[kMs][4], b[kNs][2];
      // Both operands are stored [k, column]: 8x8 blocks are transposed on the way.
      const int a_row = k + lane % 8 + lane / 16 * 8, a_chunk = lane / 8 % 2;
      const int b_row = k + lane % 8 + lane / 8 % 2 * 8, b_chunk = lane / 16;
#pragma unroll
      for (int i = 0; i < kMs; ++i) {
        LoadTransposed(a_tile + Swizzled<kM>(a_row, (warp_m + i * 16) / 8 + a_chunk), a[i][0],
                       a[i][1], a[i][2], a[i][3]);
      }
#pragma unroll
      for (int j = 0; j < kNs; j += 2) {
        LoadTransposed(b_tile + Swizzled<kN>(b_row, (warp_n + j * 8) / 8 + b_chunk), b[j][0],
                       b[j][1], b[j + 1][0], b[j + 1][1]);
      }
#pragma unroll
      for (int i = 0; i < kMs; ++i) {
#pragma unroll
        for (int j = 0; j < kNs; ++j) MultiplyAdd(a[i], b[j], unit[i][j]);
      }
    }
    if (!unit_done) continue;
#pragma unroll
    for (int i = 0; i < kMs; ++i) {
#pragma unroll
      for (int j = 0; j < kNs; ++j) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          total[i][j][v] += unit[i][j][v];
          unit[i][j][v] = 0;
        }
      }
    }
  }
  for_each_pair([](bool inside, float2* at, float a, float b) {
    if (inside) *at = {a, b};
  });
}

}  // namespace

bool CanSumUnits(const void* dy, int64_t outputs, const void* x, int64_t inputs, const float* dw) {
  return outputs % 8 == 0 && inputs % 8 == 0 && IsAligned(dy) && IsAligned(x) && IsAligned(dw, 8);
}

void SumUnits(const UnitRun& units, const void* dy, int64_t outputs, const void* x, int64_t inputs,
              float* dw, CUstream_st* stream) {
  if (units.experts * outputs * inputs == 0) return;
  constexpr int kBytes = kStages * kStageElements * static_cast<int>(sizeof(BFloat16));
  // Of the device at hand, and a process may have several.
  if (cudaFuncSetAttribute(UnitSumKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) !=
      cudaSuccess) {
    return;  // the launch error stays for Device::CheckLaunch
  }
  const dim3 grid(static_cast<unsigned>((outputs + kM - 1) / kM),
                  static_cast<unsigned>((inputs + kN - 1) / kN),
                  static_cast<unsigned>(units.experts));
  UnitSumKernel<<<grid, kThreads, kBytes, stream>>>(units, static_cast<const BFloat16*>(dy),
                                                    outputs, static_cast<const BFloat16*>(x),
                                                    inputs, dw);
}

}  // namespace weir::cuda
