#include "kernels/reduce/reduce_axis.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "kernels/common/vector_loops.h"
#include "kernels/reduce/reduce_loops.h"

namespace weir {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements of x
constexpr int64_t kBlockRows = 128, kBlockColumns = 256;

// ln(sum e^x), shifted by the maximum when that is finite.
float LogSumExpOf(const float* x, int64_t count) {
  const float top = count == 0 ? 0 : GreatestOf(x, count), shift = std::isfinite(top) ? top : 0;
  if (std::isinf(top) && top > 0) return top;  // SumExp saturates before infinity - infinity
  return std::log(SumExp(x, count, shift)) + shift;
}

float ReduceRow(Reduction kind, const float* x, int64_t count) {
  switch (kind) {
    case Reduction::kMax:
      return GreatestOf(x, count);
    case Reduction::kMin:
      return LeastOf(x, count);
    case Reduction::kProd:
      return ProductOf(x, count);
    case Reduction::kLogSumExp:
      return LogSumExpOf(x, count);
    case Reduction::kSumSquare:
    case Reduction::kL2:
      return SumSquaresOf(x, count);
    default:
      return SumOf(x, count);
  }
}

// Sums of rows [0, length) by blocks; `add` adds one row piece into an accumulator.
template <class Add>
void SumColumns(int64_t length, int64_t width, const Add& add, float* y) {
  float block[kBlockColumns];
  double sum[kBlockColumns] = {};
  for (int64_t row = 0; row < length; row += kBlockRows) {
    std::fill(block, block + width, 0.0f);
    for (int64_t i = row; i < std::min(length, row + kBlockRows); ++i) add(i, block);
    AddToDouble(block, width, sum);
  }
  for (int64_t j = 0; j < width; ++j) y[j] = static_cast<float>(sum[j]);
}

// Columns [0, width) of one outer slice; x points at the first, rows are `inner` apart.
void ReduceColumns(Reduction kind, const float* x, int64_t length, int64_t inner, int64_t width,
                   float* y) {
  const auto fold = [&](auto step) {
    std::memcpy(y, x, static_cast<size_t>(width) * sizeof(float));
    for (int64_t i = 1; i < length; ++i) step(x + i * inner, width, y);
  };
  switch (kind) {
    case Reduction::kMax:
      return fold(GreatestTo);
    case Reduction::kMin:
      return fold(LeastTo);
    case Reduction::kProd:
      std::fill(y, y + width, 1.0f);
      for (int64_t i = 0; i < length; ++i) MultiplyTo(x + i * inner, width, y);
      return;
    case Reduction::kLogSumExp: {
      float top[kBlockColumns];
      std::fill(top, top + width, -std::numeric_limits<float>::infinity());
      for (int64_t i = 0; i < length; ++i) GreatestTo(x + i * inner, width, top);
      float shift[kBlockColumns];
      for (int64_t j = 0; j < width; ++j) shift[j] = std::isfinite(top[j]) ? top[j] : 0;
      SumColumns(
          length, width,
          [&](int64_t i, float* block) { AddExpTo(x + i * inner, shift, width, block); }, y);
      for (int64_t j = 0; j < width; ++j) {
        y[j] = std::isinf(top[j]) && top[j] > 0 ? top[j] : std::log(y[j]) + shift[j];
      }
      return;
    }
    case Reduction::kSumSquare:
    case Reduction::kL2:
      return SumColumns(
          length, width,
          [&](int64_t i, float* block) { AddSquaresTo(x + i * inner, width, block); }, y);
    default:
      return SumColumns(
          length, width, [&](int64_t i, float* block) { AddTo(x + i * inner, width, block); }, y);
  }
}

}  // namespace

void ReduceAxis(Reduction kind, const float* x, int64_t outer, int64_t length, int64_t inner,
                float* y) {
  if (inner == 1) {
    ParallelFor(outer, std::max<int64_t>(1, kGrain / std::max<int64_t>(length, 1)),
                [&](int64_t begin, int64_t end) {
                  for (int64_t i = begin; i < end; ++i)
                    y[i] = ReduceRow(kind, x + i * length, length);
                });
    return;
  }
  const int64_t pieces = DivCeil(inner, kBlockColumns);
  const int64_t work = std::max<int64_t>(length * std::min(inner, kBlockColumns), 1);
  ParallelFor(outer * pieces, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t slice = k / pieces, column = k % pieces * kBlockColumns;
      ReduceColumns(kind, x + slice * length * inner + column, length, inner,
                    std::min(kBlockColumns, inner - column), y + slice * inner + column);
    }
  });
}

}  // namespace weir
