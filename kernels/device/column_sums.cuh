// Sums over rows, per column: token blocks of 4096 rows, each from zero in float32, blocks folded from the left.
// Inside a block 32 interleaved chains (row i goes to chain i % 32) are folded in order.
#pragma once
#include "kernels/device/launch.cuh"

namespace weir::cuda {

inline constexpr int64_t kColumnBlockRows = 4096;
inline constexpr int kColumnChains = 32, kColumnWidth = 32;

inline int64_t ColumnBlocks(int64_t rows) { return (rows + kColumnBlockRows - 1) / kColumnBlockRows; }
inline int64_t ColumnSumsFloats(int64_t rows, int64_t columns) { return ColumnBlocks(rows) * columns; }

// partial[block, column]; value.Add(sum, row, column) returns the sum with one more term.
template <class Value>
__global__ void ColumnBlockKernel(Value value, int64_t rows, int64_t columns, float* partial) {
  __shared__ float chains[kColumnChains][kColumnWidth];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumnWidth + threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kColumnBlockRows;
  const int64_t last = first + kColumnBlockRows < rows ? first + kColumnBlockRows : rows;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = first + threadIdx.y; row < last; row += kColumnChains) sum = value.Add(sum, row, column);
  }
  chains[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int chain = 1; chain < kColumnChains; ++chain) sum += chains[chain][threadIdx.x];
  partial[static_cast<int64_t>(blockIdx.y) * columns + column] = sum;
}

// out[column] = (add ? out[column] : 0) + partial[0] + partial[1] + ...
static __global__ void ColumnFoldKernel(const float* partial, int64_t blocks, int64_t columns, bool add, float* out) {
  for (int64_t column = FirstIndex(); column < columns; column += IndexStride()) {
    float sum = add ? out[column] : 0.0f;
    for (int64_t block = 0; block < blocks; ++block) sum += partial[block * columns + column];
    out[column] = sum;
  }
}

template <class Value>
void SumColumns(const Value& value, int64_t rows, int64_t columns, bool add, float* partial, float* out, CUstream_st* stream) {
  if (columns == 0) return;
  const int64_t blocks = ColumnBlocks(rows);
  const dim3 grid(static_cast<unsigned>((columns + kColumnWidth - 1) / kColumnWidth), static_cast<unsigned>(blocks));
  if (blocks > 0)
    ColumnBlockKernel<<<grid, dim3(kColumnWidth, kColumnChains), 0, stream>>>(value, rows, columns, partial);
  ColumnFoldKernel<<<BlocksFor(columns), kThreads, 0, stream>>>(partial, blocks, columns, add, out);
}

}  // namespace weir::cuda
