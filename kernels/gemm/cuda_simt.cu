#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/gemm/cuda.h"

namespace weir::cuda {
namespace {

constexpr int kM = 128, kN = 64, kK = 16;  // tile of a block of 256 threads
constexpr int kRows = 8, kColumns = 4;     // of a thread
constexpr int kChain = 256;                // kSgemmBlockK
constexpr int kPadding = 4;                // keeps columns of a tile in different banks

struct Operand {
  const void* data;
  bool bf16;
  int64_t row, k;  // strides along the outer and the inner axis
};

__device__ float Load(const Operand& x, int64_t at) {
  return x.bf16 ? ToFloat(static_cast<const BFloat16*>(x.data)[at])
                : static_cast<const float*>(x.data)[at];
}

// Reads a [kOuter, kK] tile, neighbours along the contiguous axis, zero outside.
template <int kOuter>
struct TileReader {
  static constexpr int kEach = kOuter * kK / kThreads;
  float value[kEach];

  __device__ static int Outer(const Operand& x, int e) {
    const int at = static_cast<int>(threadIdx.x) + e * kThreads;
    return x.k == 1 ? at / kK : at % kOuter;
  }
  __device__ static int Inner(const Operand& x, int e) {
    const int at = static_cast<int>(threadIdx.x) + e * kThreads;
    return x.k == 1 ? at % kK : at / kOuter;
  }
  __device__ void Read(const Operand& x, int64_t outer, int64_t outer_end, int64_t inner,
                       int64_t inner_end) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int64_t o = outer + Outer(x, e), i = inner + Inner(x, e);
      value[e] = o < outer_end && i < inner_end ? Load(x, o * x.row + i * x.k) : 0.0f;
    }
  }
  __device__ void Write(const Operand& x, float (*tile)[kOuter + kPadding]) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) tile[Inner(x, e)][Outer(x, e)] = value[e];
  }
};

struct Target {
  int64_t m, n, k, stride;
  void* c;
  bool bf16;
  GemmSum sum;
  const float* bias;
};

__global__ void __launch_bounds__(kThreads) SimtGemmKernel(Operand a, Operand b, Target t) {
  __shared__ float a_tile[kK][kM + kPadding], b_tile[kK][kN + kPadding];
  const int row = static_cast<int>(threadIdx.x) / 16 * kRows,
            column = static_cast<int>(threadIdx.x) % 16 * kColumns;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kM,
                first_column = static_cast<int64_t>(blockIdx.y) * kN;
  float total[kRows][kColumns] = {}, chain[kRows][kColumns] = {};
  float* c = static_cast<float*>(t.c);
  const auto at = [&](int i, int j) {
    return (first_row + row + i) * t.stride + first_column + column + j;
  };
  const auto inside = [&](int i, int j) {
    return first_row + row + i < t.m && first_column + column + j < t.n;
  };
  if (t.sum == GemmSum::kContinue) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) total[i][j] = inside(i, j) ? c[at(i, j)] : 0.0f;
    }
  }
  TileReader<kM> a_next;
  TileReader<kN> b_next;
  a_next.Read(a, first_row, t.m, 0, t.k);
  b_next.Read(b, first_column, t.n, 0, t.k);
  for (int64_t k = 0; k < t.k; k += kK) {
    a_next.Write(a, a_tile);
    b_next.Write(b, b_tile);
    __syncthreads();
    if (k + kK < t.k) {
      a_next.Read(a, first_row, t.m, k + kK, t.k);
      b_next.Read(b, first_column, t.n, k + kK, t.k);
    }
#pragma unroll
    for (int p = 0; p < kK; ++p) {
      float left[kRows], right[kColumns];
#pragma unroll
      for (int i = 0; i < kRows; ++i) left[i] = a_tile[p][row + i];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) right[j] = b_tile[p][column + j];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) chain[i][j] = fmaf(left[i], right[j], chain[i][j]);
      }
    }
    __syncthreads();
    if ((k + kK) % kChain != 0 && k + kK < t.k) continue;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        total[i][j] += chain[i][j];
        chain[i][j] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (!inside(i, j)) continue;
      float value = total[i][j];
      if (t.bias != nullptr) value += t.bias[first_column + column + j];
      if (t.sum == GemmSum::kFold) value = c[at(i, j)] + value;
      if (t.bf16) {
        static_cast<BFloat16*>(t.c)[at(i, j)] = FromFloat<BFloat16>(value);
      } else {
        c[at(i, j)] = value;
      }
    }
  }
}

unsigned Tiles(int64_t size, int64_t tile) {
  return static_cast<unsigned>((size + tile - 1) / tile);
}

}  // namespace

void SimtGemm(const GemmCall& call, CUstream_st* stream) {
  if (call.m == 0 || call.n == 0) return;
  const auto operand = [](const Matrix& x, bool inner_contiguous) {
    return Operand{x.data, x.dtype == DType::kBFloat16, inner_contiguous ? x.stride : 1,
                   inner_contiguous ? 1 : x.stride};
  };
  const Target target{call.m,        call.n,   call.k,
                      call.c_stride, call.c,   call.c_dtype == DType::kBFloat16,
                      call.sum,      call.bias};
  SimtGemmKernel<<<dim3(Tiles(call.m, kM), Tiles(call.n, kN)), kThreads, 0, stream>>>(
      operand(call.a, !call.a.transposed), operand(call.b, call.b.transposed), target);
}

}  // namespace weir::cuda
