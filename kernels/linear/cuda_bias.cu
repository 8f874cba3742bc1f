#include "kernels/device/column_sums.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/linear/cuda_bias.h"

namespace weir::cuda {
namespace {

template <class T>
struct BiasTerm {
  const T* dy;
  int64_t columns;
  template <int kSize>
  __device__ void Add(float (&sums)[kSize], int64_t row, int64_t column) const {
    const auto pack = *reinterpret_cast<const Pack<T, kSize>*>(dy + row * columns + column);
#pragma unroll
    for (int i = 0; i < kSize; ++i) sums[i] += ToFloat(pack.at[i]);
  }
};

}  // namespace

int64_t BiasGradientPartial(int64_t rows, int64_t columns) {
  return ColumnSumsFloats(rows, columns);
}

void BiasGradient(DType dtype, const void* dy, int64_t rows, int64_t columns, bool add,
                  float* partial, float* db, CUstream_st* stream) {
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    SumColumns(BiasTerm<T>{static_cast<const T*>(dy), columns}, rows, columns,
               columns % 4 == 0 && IsAligned(dy), add, partial, db, stream);
  });
}

}  // namespace weir::cuda
