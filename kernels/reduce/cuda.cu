#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/reduce/cuda.h"

namespace weir::cuda {
namespace {

constexpr int64_t kLongRow = 2048;  // a whole block from here on, else a warp

__device__ inline double Load(float x) { return x; }
__device__ inline double Load(BFloat16 x) { return ToFloat(x); }
__device__ inline int64_t Load(int64_t x) { return x; }
__device__ inline int64_t Load(int32_t x) { return x; }
template <class T>
__device__ void Store(T* y, int64_t value) {
  *y = static_cast<T>(value);
}
__device__ inline void Store(float* y, double value) { *y = static_cast<float>(value); }
__device__ inline void Store(BFloat16* y, double value) {
  *y = __float2bfloat16_rn(static_cast<float>(value));
}

struct Fold {
  Reduction kind;
  __device__ double Start(double) const {
    return kind == Reduction::kProd  ? 1.0
           : kind == Reduction::kMax ? -INFINITY
           : kind == Reduction::kMin ? INFINITY
                                     : 0.0;
  }
  __device__ int64_t Start(int64_t) const {
    return kind == Reduction::kProd  ? 1
           : kind == Reduction::kMax ? INT64_MIN
           : kind == Reduction::kMin ? INT64_MAX
                                     : 0;
  }
  // NaN wins.
  template <class A>
  __device__ A operator()(A a, A b) const {
    switch (kind) {
      case Reduction::kMax:
        return a > b || a != a ? a : b;
      case Reduction::kMin:
        return a < b || a != a ? a : b;
      case Reduction::kProd:
        return a * b;
      default:
        return a + b;
    }
  }
  template <class A>
  __device__ A Term(A x, A shift) const {
    if (kind == Reduction::kSumSquare || kind == Reduction::kL2) return x * x;
    if (kind == Reduction::kLogSumExp) return static_cast<A>(exp(static_cast<double>(x - shift)));
    return x;
  }
  template <class A>
  __device__ A Finish(A sum, A shift, int64_t count) const {
    if (kind == Reduction::kMean) return sum / static_cast<A>(count);
    if (kind == Reduction::kL2) return static_cast<A>(sqrt(static_cast<double>(sum)));
    if (kind == Reduction::kLogSumExp) return static_cast<A>(log(static_cast<double>(sum))) + shift;
    return sum;
  }
};

__device__ int64_t OffsetOf(int rank, const int64_t* size, const int64_t* stride, int64_t index) {
  int64_t at = 0;
  for (int i = rank - 1; i >= 0; --i) {
    const int64_t rest = i > 0 ? index / size[i] : 0;
    at += (index - rest * size[i]) * stride[i];
    index = rest;
  }
  return at;
}

// Strided partial results per thread, then the tree over the group.
template <int kGroup, class T, class A>
__device__ A FoldRow(const Fold& fold, const ReduceAxes& axes, int64_t count, const T* x, A shift) {
  A result = fold.Start(A{});
  for (int64_t k = threadIdx.x % kGroup; k < count; k += kGroup) {
    const A term =
        fold.Term(Load(x[OffsetOf(axes.reduced_rank, axes.reduced_size, axes.reduced_stride, k)]), shift);
    result = fold(result, term);
  }
  return Reduce<kGroup>(result, fold);
}

template <int kGroup, class T>
__global__ void ReduceKernel(Fold fold, ReduceAxes axes, int64_t rows, int64_t count, const T* x, T* y) {
  using Row = GroupOf<kGroup, kThreads>;
  using A = decltype(Load(T{}));
  for (int64_t row = Row::FirstRow(); row < rows; row += Row::RowStride()) {
    const T* from = x + OffsetOf(axes.kept_rank, axes.kept_size, axes.kept_stride, row);
    A shift = 0;
    if (fold.kind == Reduction::kLogSumExp) {
      shift = FoldRow<kGroup, T, A>({Reduction::kMax}, axes, count, from, A(0));
      if (!isfinite(static_cast<double>(shift))) shift = 0;
    }
    const A sum = FoldRow<kGroup, T, A>(fold, axes, count, from, shift);
    if (Row::Lane() == 0) Store(y + row, fold.Finish(sum, shift, count));
  }
}

template <class T>
void Run(Reduction kind, const ReduceAxes& axes, const void* x, void* y, CUstream_st* stream) {
  int64_t rows = 1, count = 1;
  for (int i = 0; i < axes.kept_rank; ++i) rows *= axes.kept_size[i];
  for (int i = 0; i < axes.reduced_rank; ++i) count *= axes.reduced_size[i];
  if (rows == 0) return;
  const bool is_long = count >= kLongRow;
  const auto kernel = is_long ? ReduceKernel<kThreads, T> : ReduceKernel<kWarp, T>;
  kernel<<<BlocksFor(rows, is_long ? 1 : kThreads / kWarp), kThreads, 0, stream>>>(
      Fold{kind}, axes, rows, count, static_cast<const T*>(x), static_cast<T*>(y));
}

}  // namespace

void Reduce(Reduction kind, DType dtype, const ReduceAxes& axes, const void* x, void* y,
            CUstream_st* stream) {
  switch (dtype) {
    case DType::kInt64:
      return Run<int64_t>(kind, axes, x, y, stream);
    case DType::kInt32:
      return Run<int32_t>(kind, axes, x, y, stream);
    case DType::kBFloat16:
      return Run<BFloat16>(kind, axes, x, y, stream);
    default:
      return Run<float>(kind, axes, x, y, stream);
  }
}

}  // namespace weir::cuda
