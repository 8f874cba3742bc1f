#include <cmath>
#include <type_traits>

#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/experts/gate.cuh"

namespace weir::cuda {
namespace {

// Of the row's expert, among those of all experts.
__device__ const float* BiasOf(const ExpertRows& x, const float* bias, int64_t row, int64_t width) {
  return bias == nullptr ? nullptr : bias + x.ids[RouteAt(x.routes, row)] * width;
}
// A pair of pre-activations, the activation and its slope. kPlain: swiglu of bfloat16 without
// biases and clamps.
template <bool kPlain>
__device__ Pair PairAt(const Gate& gate, const float* bias, int64_t width, float g, float u) {
  if constexpr (kPlain) return Pair(g, u);
  return Pair(gate, g + BiasAt(bias, 0), u + BiasAt(bias, bias == nullptr ? 0 : width));
}
template <bool kPlain>
__device__ void ActivateAt(const Gate& gate, float g, float& value, float& slope) {
  kPlain ? ActivateSwiglu(gate.alpha, g, value, slope) : Activate(gate, g, value, slope);
}

// A warp per row.
template <class T, int kSize, bool kPlain>
__global__ void __launch_bounds__(kThreads) GatedForwardKernel(ExpertRows x, Gate gate) {
  using Values = Pack<T, kSize>;
  for (int64_t row = FirstIndex() / kWarp; row < x.rows; row += IndexStride() / kWarp) {
    const T* gate_up = static_cast<const T*>(x.gate_up) + row * 2 * x.i;
    T* a = static_cast<T*>(x.a) + row * x.i;
    const float* bias = BiasOf(x, x.gate_up_bias, row, 2 * x.i);
#pragma unroll 1
    for (int64_t j = threadIdx.x % kWarp * kSize; j < x.i; j += kWarp * kSize) {
      const auto g = *reinterpret_cast<const Values*>(gate_up + j);
      const auto u = *reinterpret_cast<const Values*>(gate_up + x.i + j);
      Values out;
#pragma unroll
      for (int p = 0; p < kSize; ++p) {
        const Pair pair = PairAt<kPlain>(gate, bias == nullptr ? nullptr : bias + j + p, x.i,
                                         ToFloat(g.at[p]), ToFloat(u.at[p]));
        float value, slope;
        ActivateAt<kPlain>(gate, pair.g, value, slope);
        out.at[p] = FromFloat<T>(value * (pair.u + gate.beta));
      }
      *reinterpret_cast<Values*>(a + j) = out;
    }
  }
}

// A warp per row.
template <class T, int kSize, bool kPlain>
__global__ void __launch_bounds__(kThreads, 4)
    GatedBackwardKernel(ExpertRows x, Gate gate, GatedGradient grad) {
  using Values = Pack<T, kSize>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t row = FirstIndex() / kWarp; row < x.rows; row += IndexStride() / kWarp) {
    const int64_t route = RouteAt(x.routes, row);
    const float weight = grad.weights[route];
    T* gate_up = static_cast<T*>(x.gate_up) + row * 2 * x.i;
    T* a = static_cast<T*>(x.a) + row * x.i;
    const T* da = static_cast<const T*>(grad.da) + row * x.i;
    const float* gate_up_bias = BiasOf(x, x.gate_up_bias, row, 2 * x.i);
    float sum = 0;
#pragma unroll 1  // fewer registers, more warps that wait for memory
    for (int64_t j = lane * kSize; j < x.i; j += kWarp * kSize) {
      auto g = *reinterpret_cast<const Values*>(gate_up + j);
      auto u = *reinterpret_cast<const Values*>(gate_up + x.i + j);
      auto d = *reinterpret_cast<const Values*>(da + j);
#pragma unroll
      for (int p = 0; p < kSize; ++p) {
        const Pair pair =
            PairAt<kPlain>(gate, gate_up_bias == nullptr ? nullptr : gate_up_bias + j + p, x.i,
                           ToFloat(g.at[p]), ToFloat(u.at[p]));
        float value, slope;
        ActivateAt<kPlain>(gate, pair.g, value, slope);
        const float up = pair.u + gate.beta, own = ToFloat(d.at[p]), scaled = weight * own;
        sum = fmaf(value * up, own, sum);
        d.at[p] = FromFloat<T>(weight * (value * up));
        g.at[p] = FromFloat<T>(pair.stop_g ? 0.0f : scaled * up * slope);
        u.at[p] = FromFloat<T>(pair.stop_u ? 0.0f : scaled * value);
      }
      *reinterpret_cast<Values*>(a + j) = d;
      *reinterpret_cast<Values*>(gate_up + j) = g;
      *reinterpret_cast<Values*>(gate_up + x.i + j) = u;
    }
    if (const float* down_bias = BiasOf(x, x.down_bias, row, x.h)) {
      const T* dy = static_cast<const T*>(grad.dy) + row * x.h;
      for (int64_t j = lane; j < x.h; j += kWarp) sum = fmaf(ToFloat(dy[j]), down_bias[j], sum);
    }
    sum = Reduce<kWarp>(sum, SumStep());
    if (lane == 0) grad.dweights[route] = sum;
  }
}

// A warp per row; U is what one thread moves at a time.
template <class U>
__global__ void GatherRowsKernel(const U* from, const int64_t* routes, int64_t rows, int64_t k,
                                 int64_t width, U* out) {
  const int64_t warps = IndexStride() / kWarp;
  for (int64_t row = FirstIndex() / kWarp; row < rows; row += warps) {
    const U* source = from + routes[row] / k * width;
    for (int64_t j = threadIdx.x % kWarp; j < width; j += kWarp) out[row * width + j] = source[j];
  }
}

// A block per token of the chunk: read once, written for each slot.
template <class U>
__global__ void SpreadRowsKernel(const U* from, const int64_t* routes, const int64_t* row_at,
                                 int64_t tokens, int64_t k, int64_t width, U* out) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    const int64_t* rows = row_at + t * k;
    const U* token = from + routes[rows[0]] / k * width;
    for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      const U value = token[j];
      for (int64_t slot = 0; slot < k; ++slot) out[rows[slot] * width + j] = value;
    }
  }
}

// A block per token of the chunk.
template <class T, int kSize>
__global__ void FoldSlotsKernel(FoldRows f, RouteChunk chunk) {
  for (int64_t t = blockIdx.x; t < chunk.tokens; t += gridDim.x) {
    if (chunk.k == 0) return;
    for (int64_t j = static_cast<int64_t>(threadIdx.x) * kSize; j < f.h;
         j += static_cast<int64_t>(blockDim.x) * kSize) {
      float sum[kSize] = {};
      int64_t token = 0;
      for (int64_t slot = 0; slot < chunk.k; ++slot) {
        const int64_t row = f.row_at[t * chunk.k + slot], route = f.routes[row];
        token = route / chunk.k;
        const float weight = f.weights == nullptr ? 1.0f : f.weights[route];
        const auto home =
            *reinterpret_cast<const Pack<T, kSize>*>(static_cast<const T*>(f.home) + row * f.h + j);
#pragma unroll
        for (int p = 0; p < kSize; ++p) {
          const float bias = f.bias == nullptr ? 0.0f : f.bias[f.ids[route] * f.h + j + p];
          sum[p] = fmaf(weight, ToFloat(home.at[p]) + bias, sum[p]);
        }
      }
      Pack<T, kSize> out;
#pragma unroll
      for (int p = 0; p < kSize; ++p) out.at[p] = FromFloat<T>(sum[p]);
      *reinterpret_cast<Pack<T, kSize>*>(static_cast<T*>(f.out) + token * f.h + j) = out;
    }
  }
}

// A thread per expert and column.
template <class T>
__global__ void SumBiasKernel(UnitRun units, const T* rows, RowWeights w, int64_t width,
                              float* out) {
  for (int64_t at = FirstIndex(); at < units.experts * width; at += IndexStride()) {
    const int64_t expert = at / width, j = at % width;
    int64_t unit = units.begin, end = units.end;
    if (units.first != nullptr) {
      unit = max(unit, units.first[expert]);
      end = min(end, units.first[expert + 1]);
    }
    if (unit >= end) continue;
    float total = out[at];
    for (; unit < end; ++unit) {
      float sum = 0;
      for (int64_t row = units.row[unit] - units.origin; row < units.row[unit + 1] - units.origin;
           ++row) {
        const float weight = w.weights == nullptr ? 1.0f : w.weights[RouteAt(w.routes, row)];
        sum = fmaf(weight, ToFloat(rows[row * width + j]), sum);
      }
      total += sum;
    }
    out[at] = total;
  }
}

template <class T>
constexpr int PackOf() {
  return 16 / static_cast<int>(sizeof(T));
}

// Calls launch(what one thread moves at a time).
template <class Launch>
void WithUnit(int64_t bytes, bool aligned, const Launch& launch) {
  bytes % 16 == 0 && aligned ? launch(uint4{}) : launch(uint16_t{});
}
// Calls launch(T{}, size of a pack, kPlain).
template <class Launch>
void WithGate(const ExpertRows& x, const Gate& gate, bool aligned, const Launch& launch) {
  WithFloatType(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = PackOf<T>();
    if (x.i % kPack != 0 || !aligned)
      return launch(type, std::integral_constant<int, 1>{}, std::false_type{});
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (gate.kind == GateActivation::kSwiglu && x.gate_up_bias == nullptr &&
          std::isinf(gate.limit))
        return launch(type, std::integral_constant<int, kPack>{}, std::true_type{});
    }
    launch(type, std::integral_constant<int, kPack>{}, std::false_type{});
  });
}

}  // namespace

void GatherRows(const void* from, const int64_t* routes, int64_t rows, int64_t k, int64_t bytes,
                void* out, CUstream_st* stream) {
  if (rows * bytes == 0) return;
  WithUnit(bytes, IsAligned(from) && IsAligned(out), [&](auto unit) {
    using U = decltype(unit);
    GatherRowsKernel<U><<<BlocksFor(rows * kWarp), kThreads, 0, stream>>>(
        static_cast<const U*>(from), routes, rows, k, bytes / static_cast<int64_t>(sizeof(U)),
        static_cast<U*>(out));
  });
}

void SpreadRows(const void* from, const RouteTable& table, const RouteChunk& chunk, int64_t bytes,
                void* out, CUstream_st* stream) {
  if (chunk.routes() * bytes == 0) return;
  WithUnit(bytes, IsAligned(from) && IsAligned(out), [&](auto unit) {
    using U = decltype(unit);
    SpreadRowsKernel<U><<<BlocksFor(chunk.tokens, 1), kThreads, 0, stream>>>(
        static_cast<const U*>(from), table.routes, table.row_at, chunk.tokens, chunk.k,
        bytes / static_cast<int64_t>(sizeof(U)), static_cast<U*>(out));
  });
}

void GatedForward(const ExpertRows& x, const Gate& gate, CUstream_st* stream) {
  if (x.rows * x.i == 0) return;
  WithGate(x, gate, IsAligned(x.gate_up) && IsAligned(x.a), [&](auto type, auto pack, auto plain) {
    GatedForwardKernel<decltype(type), pack(), plain()>
        <<<BlocksFor(x.rows * kWarp), kThreads, 0, stream>>>(x, gate);
  });
}

void GatedBackward(const ExpertRows& x, const Gate& gate, const GatedGradient& g,
                   CUstream_st* stream) {
  if (x.rows == 0) return;
  WithGate(x, gate, IsAligned(x.gate_up) && IsAligned(x.a) && IsAligned(g.da),
           [&](auto type, auto pack, auto plain) {
             GatedBackwardKernel<decltype(type), pack(), plain()>
                 <<<BlocksFor(x.rows * kWarp), kThreads, 0, stream>>>(x, gate, g);
           });
}

void FoldSlots(const FoldRows& f, const RouteChunk& chunk, CUstream_st* stream) {
  if (chunk.tokens * f.h == 0) return;
  WithFloatType(f.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = PackOf<T>();
    const unsigned blocks = BlocksFor(chunk.tokens, 1);
    const bool packed = f.h % kPack == 0 && IsAligned(f.home) && IsAligned(f.out);
    if (packed) return FoldSlotsKernel<T, kPack><<<blocks, kThreads, 0, stream>>>(f, chunk);
    FoldSlotsKernel<T, 1><<<blocks, kThreads, 0, stream>>>(f, chunk);
  });
}

void SumBias(const UnitRun& units, const void* rows, DType dtype, const RowWeights& weights,
             int64_t width, float* out, CUstream_st* stream) {
  if (units.experts * width == 0) return;
  WithFloatType(dtype, [&](auto type) {
    using T = decltype(type);
    SumBiasKernel<T><<<BlocksFor(units.experts * width), kThreads, 0, stream>>>(
        units, static_cast<const T*>(rows), weights, width, out);
  });
}

}  // namespace weir::cuda
