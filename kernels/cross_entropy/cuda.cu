#include <cmath>

#include "kernels/cross_entropy/cuda.h"
#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"

namespace weir::cuda {
namespace {

constexpr int kLeaf = 2048, kRun = 8, kRuns = kLeaf / (kRun * kWarp), kWarps = kThreads / kWarp;

__global__ void FindBadLabelKernel(const int64_t* labels, int64_t count, int64_t vocabulary,
                                   int64_t ignore_index, long long* bad) {
  for (int64_t i = FirstIndex(); i < count; i += IndexStride()) {
    if (labels[i] != ignore_index && (labels[i] < 0 || labels[i] >= vocabulary)) {
      atomicMin(bad, static_cast<long long>(i));
    }
  }
}

struct Pair {
  float top, sum;
};

// Whole rows and strips of them may take different instances of these kernels, in which the compiler joins
// products and sums as it likes: __fadd_rn and __fmul_rn leave it no choice.
//
// (max, sum) of one leaf by one warp. A lane owns runs of eight columns, however they are loaded.
template <class T, bool kPacked>
__device__ Pair LeafSum(const T* leaf, int64_t width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float value[kRuns * kRun];
#pragma unroll
  for (int run = 0; run < kRuns; ++run) {
    const int64_t column = (run * kWarp + lane) * kRun;
    if constexpr (kPacked) {
      if (column + kRun <= width) {
        const auto pack = *reinterpret_cast<const Pack<T, kRun>*>(leaf + column);
#pragma unroll
        for (int p = 0; p < kRun; ++p) value[run * kRun + p] = ToFloat(pack.at[p]);
        continue;
      }
    }
#pragma unroll
    for (int p = 0; p < kRun; ++p)
      value[run * kRun + p] = column + p < width ? ToFloat(leaf[column + p]) : -INFINITY;
  }
  float top = value[0];
#pragma unroll
  for (int at = 1; at < kRuns * kRun; ++at) top = fmaxf(top, value[at]);
  top = Reduce<kWarp>(top, MaxStep());
  const float base = isfinite(top) ? top : 0.0f;  // exp(-inf - -inf) would be NaN
  float sum = 0;
#pragma unroll
  for (int at = 0; at < kRuns * kRun; ++at) sum = __fadd_rn(sum, expf(value[at] - base));
  return {top, Reduce<kWarp>(sum, SumStep())};
}

__device__ void Join(Pair& all, const Pair& leaf) {
  const float joined = fmaxf(all.top, leaf.top);
  if (isfinite(joined)) {
    all.sum = fmaf(all.sum, expf(all.top - joined), __fmul_rn(leaf.sum, expf(leaf.top - joined)));
  } else {
    all.sum += leaf.sum;
  }
  all.top = joined;
}

// A block per token, a warp per leaf.
template <class T, bool kPacked>
__global__ void __launch_bounds__(kThreads) AddLogitsKernel(LogitStrip s, TokenSums sums) {
  __shared__ Pair leaves[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* logits = static_cast<const T*>(s.logits) + row * s.stride;
    Pair all = s.first == 0 ? Pair{-INFINITY, 0.0f} : Pair{sums.top[row], sums.sum[row]};
    for (int64_t round = 0; round < s.width; round += kWarps * kLeaf) {
      const int64_t first = round + warp * kLeaf;
      if (first < s.width) {
        const Pair leaf =
            LeafSum<T, kPacked>(logits + first, min(s.width - first, static_cast<int64_t>(kLeaf)));
        if (threadIdx.x % kWarp == 0) leaves[warp] = leaf;
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int w = 0; w < kWarps && round + w * kLeaf < s.width; ++w) Join(all, leaves[w]);
      }
      __syncthreads();
    }
    if (threadIdx.x != 0) continue;
    sums.top[row] = all.top;
    sums.sum[row] = all.sum;
    const int64_t label = s.labels[row] - s.first;
    if (label >= 0 && label < s.width) sums.at_label[row] = ToFloat(logits[label]);
  }
}

__device__ float WeightOf(const float* weights, int64_t row) {
  return weights == nullptr ? 1.0f : weights[row];
}

__global__ void FinishLogSumKernel(TokenSums sums, TokenCounts tokens, int64_t rows, float* lse, double* terms) {
  for (int64_t row = FirstIndex(); row < rows; row += IndexStride()) {
    const float value = sums.top[row] + logf(sums.sum[row]);
    lse[row] = value;
    const float weight = WeightOf(tokens.weights, row);
    const bool counts = tokens.labels[row] != tokens.ignore_index && weight != 0.0f;
    terms[row] = counts ? static_cast<double>(weight) *
                              (static_cast<double>(value) - static_cast<double>(sums.at_label[row]))
                        : 0.0;
  }
}

constexpr int kLossThreads = 1024;

__global__ void __launch_bounds__(kLossThreads)
    SumLossKernel(const double* terms, int64_t count, const float* scale, double* loss) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kLossThreads) sum += terms[i];
  sum = Reduce<kLossThreads>(sum, SumStep());
  if (threadIdx.x == 0) *loss = sum * static_cast<double>(*scale);
}

// A block per token.
template <class T, int kSize>
__global__ void LogitsGradientKernel(LogitStrip s, LogitGradient g) {
  const float scale = *g.scale * (g.dloss == nullptr ? 1.0f : *g.dloss);
  for (int64_t row = blockIdx.x; row < s.rows; row += gridDim.x) {
    const T* logits = static_cast<const T*>(s.logits) + row * s.stride;
    T* out = static_cast<T*>(g.out) + row * s.stride;
    const float weight = WeightOf(g.weights, row), factor = scale * weight;
    const bool counts = s.labels[row] != g.ignore_index && weight != 0.0f;
    const int64_t label = s.labels[row] - s.first;
    const float lse = g.lse[row];
    for (int64_t j = static_cast<int64_t>(threadIdx.x) * kSize; j < s.width;
         j += static_cast<int64_t>(blockDim.x) * kSize) {
      auto pack = *reinterpret_cast<const Pack<T, kSize>*>(logits + j);
#pragma unroll
      for (int p = 0; p < kSize; ++p) {
        const float probability = expf(ToFloat(pack.at[p]) - lse);
        const float slope = j + p == label ? __fadd_rn(probability, -1.0f) : probability;
        pack.at[p] = FromFloat<T>(counts ? __fmul_rn(slope, factor) : 0.0f);
      }
      *reinterpret_cast<Pack<T, kSize>*>(out + j) = pack;
    }
  }
}

template <class T>
bool CanPack(const LogitStrip& s, int64_t bytes) {
  return s.stride * static_cast<int64_t>(sizeof(T)) % bytes == 0 && IsAligned(s.logits, bytes);
}

}  // namespace

void FindBadLabel(const int64_t* labels, int64_t count, int64_t vocabulary, int64_t ignore_index,
                  int64_t* bad, CUstream_st* stream) {
  if (count == 0) return;
  FindBadLabelKernel<<<BlocksFor(count), kThreads, 0, stream>>>(
      labels, count, vocabulary, ignore_index, reinterpret_cast<long long*>(bad));
}

void AddLogits(const LogitStrip& strip, const TokenSums& sums, CUstream_st* stream) {
  if (strip.rows == 0) return;
  WithFloatType(strip.dtype, [&](auto type) {
    using T = decltype(type);
    const unsigned blocks = BlocksFor(strip.rows, 1);
    const bool packed = CanPack<T>(strip, sizeof(Pack<T, kRun>));
    if (packed) return AddLogitsKernel<T, true><<<blocks, kThreads, 0, stream>>>(strip, sums);
    AddLogitsKernel<T, false><<<blocks, kThreads, 0, stream>>>(strip, sums);
  });
}

void FinishLogSum(const TokenSums& sums, const TokenCounts& tokens, int64_t rows, float* lse, double* terms,
                  CUstream_st* stream) {
  if (rows == 0) return;
  FinishLogSumKernel<<<BlocksFor(rows), kThreads, 0, stream>>>(sums, tokens, rows, lse, terms);
}

void SumLoss(const double* terms, int64_t count, const float* scale, double* loss,
             CUstream_st* stream) {
  SumLossKernel<<<1, kLossThreads, 0, stream>>>(terms, count, scale, loss);
}

void LogitsGradient(const LogitStrip& strip, const LogitGradient& g, CUstream_st* stream) {
  if (strip.rows == 0) return;
  WithFloatType(strip.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = 16 / static_cast<int>(sizeof(T));
    const unsigned blocks = BlocksFor(strip.rows, 1);
    const bool packed = strip.width % kPack == 0 && CanPack<T>(strip, 16) && IsAligned(g.out);
    if (packed) return LogitsGradientKernel<T, kPack><<<blocks, kThreads, 0, stream>>>(strip, g);
    LogitsGradientKernel<T, 1><<<blocks, kThreads, 0, stream>>>(strip, g);
  });
}

}  // namespace weir::cuda
