#include "kernels/device/column_sums.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/linear/cuda_bias.h"

namespace weir::cuda {
namespace {

template <class T>
struct BiasTerm {
  const T* dy;
  int64_t columns;
  __device__ float Add(float sum, int64_t row, int64_t column) const { return sum + ToFloat(dy[row * columns + column]); }
};

}  // namespace

int64_t BiasGradientPartial(int64_t rows, int64_t columns) { return ColumnSumsFloats(rows, columns); }

void BiasGradient(DType dtype, const void* dy, int64_t rows, int64_t columns, bool add, float* partial, float* db,
                  CUstream_st* stream) {
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    SumColumns(BiasTerm<T>{static_cast<const T*>(dy), columns}, rows, columns, add, partial, db, stream);
  });
}

}  // namespace weir::cuda
