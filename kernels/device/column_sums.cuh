// Sums over rows, per column: token blocks of 4096 rows, each from zero in float32, blocks folded from the
// left. Inside a block 32 interleaved chains (row i goes to chain i % 32) are folded in order.
#pragma once
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"

namespace weir::cuda {

inline constexpr int64_t kColumnBlockRows = 4096;
inline constexpr int kColumnChains = 32, kChainsPerBlock = 8;
inline constexpr int kFoldRows = 8, kFoldColumns = 32;

inline int64_t ColumnBlocks(int64_t rows) { return (rows + kColumnBlockRows - 1) / kColumnBlockRows; }
// Floats of `chains` below.
inline int64_t ColumnSumsFloats(int64_t rows, int64_t columns) {
  return ColumnBlocks(rows) * kColumnChains * columns;
}

// chains[block, chain, column]; value.Add<kSize>(sums, row, column) adds one term to each of kSize
// neighbours.
template <int kSize, class Value>
__global__ void ColumnChainKernel(Value value, int64_t rows, int64_t columns, float* chains) {
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kSize;
  if (column >= columns) return;
  const int64_t chain = static_cast<int64_t>(blockIdx.y) * kChainsPerBlock + threadIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.z) * kColumnBlockRows;
  const int64_t last = first + kColumnBlockRows < rows ? first + kColumnBlockRows : rows;
  float sums[kSize] = {};
#pragma unroll 4
  for (int64_t row = first + chain; row < last; row += kColumnChains)
    value.template Add<kSize>(sums, row, column);
  float* out = chains + (static_cast<int64_t>(blockIdx.z) * kColumnChains + chain) * columns + column;
#pragma unroll
  for (int i = 0; i < kSize; ++i) out[i] = sums[i];
}

// out[column] = (add ? out[column] : 0) + block 0 + block 1 + ..., a block its chains in order. Rows of
// threads sum blocks side by side, the first row adds them up.
static __global__ void ColumnFoldKernel(const float* chains, int64_t blocks, int64_t columns, bool add,
                                        float* out) {
  __shared__ float sums[kFoldRows][kFoldColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kFoldColumns + threadIdx.x;
  const bool inside = column < columns;
  float total = add && inside ? out[column] : 0.0f;
  for (int64_t base = 0; base < blocks; base += kFoldRows) {
    const int64_t block = base + threadIdx.y;
    float sum = 0;
    if (inside && block < blocks) {
#pragma unroll
      for (int chain = 0; chain < kColumnChains; ++chain)
        sum += chains[(block * kColumnChains + chain) * columns + column];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    for (int row = 0; threadIdx.y == 0 && row < kFoldRows && base + row < blocks; ++row)
      total += sums[row][threadIdx.x];
    __syncthreads();
  }
  if (inside && threadIdx.y == 0) out[column] = total;
}

// `packed`: columns come in fours, at addresses that are multiples of four elements.
template <class Value>
void SumColumns(const Value& value, int64_t rows, int64_t columns, bool packed, bool add, float* chains,
                float* out, CUstream_st* stream) {
  if (columns == 0) return;
  const int64_t blocks = ColumnBlocks(rows), threads = packed ? columns / 4 : columns;
  const dim3 grid(static_cast<unsigned>((threads + 31) / 32), kColumnChains / kChainsPerBlock,
                  static_cast<unsigned>(blocks));
  const auto kernel = packed ? ColumnChainKernel<4, Value> : ColumnChainKernel<1, Value>;
  if (blocks > 0) kernel<<<grid, dim3(32, kChainsPerBlock), 0, stream>>>(value, rows, columns, chains);
  const auto folds = static_cast<unsigned>((columns + kFoldColumns - 1) / kFoldColumns);
  ColumnFoldKernel<<<folds, dim3(kFoldColumns, kFoldRows), 0, stream>>>(chains, blocks, columns, add, out);
}

}  // namespace weir::cuda
