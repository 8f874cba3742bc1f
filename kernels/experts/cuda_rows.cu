#include "kernels/device/group.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/experts/cuda.h"

namespace weir::cuda {
namespace {

// act(g) and its derivative (kernels/experts/activation.h).
__device__ void Activate(const Gate& gate, float g, float& value, float& slope) {
  switch (gate.kind) {
    case GateActivation::kGelu: {
      const float phi = 0.5f * (1.0f + erff(g * 0.7071067811865476f));
      value = g * phi;
      slope = fmaf(g * expf(-0.5f * g * g), 0.3989422804014327f, phi);
      return;
    }
    case GateActivation::kGeluTanh: {
      const float t = tanhf(0.7978845608028654f * fmaf(0.044715f * g * g, g, g));
      const float inner = 0.7978845608028654f * fmaf(3 * 0.044715f * g, g, 1.0f);
      value = 0.5f * g * (1.0f + t);
      slope = 0.5f * (1.0f + t) + 0.5f * g * (1.0f - t * t) * inner;
      return;
    }
    case GateActivation::kRelu:
      value = g > 0 ? g : 0.0f;
      slope = g > 0 ? 1.0f : 0.0f;
      return;
    default: {
      const float s = 1.0f / (1.0f + expf(-gate.alpha * g));
      value = g * s;
      slope = s * (1.0f + gate.alpha * g * (1.0f - s));
    }
  }
}

// A pre-activation pair with its biases, clamped; what was clamped passes no gradient.
struct Pair {
  float g, u;
  bool stop_g, stop_u;

  __device__ Pair(const Gate& gate, float raw_g, float raw_u) {
    stop_g = raw_g > gate.limit;
    stop_u = fabsf(raw_u) > gate.limit;
    g = stop_g ? gate.limit : raw_g;
    u = stop_u ? copysignf(gate.limit, raw_u) : raw_u;
  }
};

__device__ int64_t RouteAt(const int64_t* routes, int64_t row) {
  return routes == nullptr ? row : routes[row];
}
__device__ float BiasAt(const float* bias, int64_t at) { return bias == nullptr ? 0.0f : bias[at]; }

template <class T, int kSize>
__global__ void GatedForwardKernel(ExpertRows x, Gate gate) {
  const T* gate_up = static_cast<const T*>(x.gate_up);
  T* a = static_cast<T*>(x.a);
  const int64_t packs = x.i / kSize;
  for (int64_t at = FirstIndex(); at < x.rows * packs; at += IndexStride()) {
    const int64_t row = at / packs, j = at % packs * kSize;
    const int64_t bias =
        x.gate_up_bias == nullptr ? 0 : x.ids[RouteAt(x.routes, row)] * 2 * x.i + j;
    const auto g = *reinterpret_cast<const Pack<T, kSize>*>(gate_up + row * 2 * x.i + j);
    const auto u = *reinterpret_cast<const Pack<T, kSize>*>(gate_up + row * 2 * x.i + x.i + j);
    Pack<T, kSize> out;
#pragma unroll
    for (int p = 0; p < kSize; ++p) {
      const Pair pair(gate, ToFloat(g.at[p]) + BiasAt(x.gate_up_bias, bias + p),
                      ToFloat(u.at[p]) + BiasAt(x.gate_up_bias, bias + x.i + p));
      float value, slope;
      Activate(gate, pair.g, value, slope);
      out.at[p] = FromFloat<T>(value * (pair.u + gate.beta));
    }
    *reinterpret_cast<Pack<T, kSize>*>(a + row * x.i + j) = out;
  }
}

// A block per row.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    GatedBackwardKernel(ExpertRows x, Gate gate, GatedGradient grad) {
  using Values = Pack<T, kSize>;
  for (int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const int64_t route = RouteAt(x.routes, row);
    const int64_t expert = x.ids == nullptr ? 0 : x.ids[route];
    const float weight = grad.weights[route];
    T* gate_up = static_cast<T*>(x.gate_up) + row * 2 * x.i;
    T* a = static_cast<T*>(x.a) + row * x.i;
    const T* da = static_cast<const T*>(grad.da) + row * x.i;
    const float* gate_up_bias =
        x.gate_up_bias == nullptr ? nullptr : x.gate_up_bias + expert * 2 * x.i;
    float sum = 0;
    for (int64_t j = static_cast<int64_t>(threadIdx.x) * kSize; j < x.i; j += kThreads * kSize) {
      auto g = *reinterpret_cast<const Values*>(gate_up + j);
      auto u = *reinterpret_cast<const Values*>(gate_up + x.i + j);
      auto d = *reinterpret_cast<const Values*>(da + j);
#pragma unroll
      for (int p = 0; p < kSize; ++p) {
        const Pair pair(gate, ToFloat(g.at[p]) + BiasAt(gate_up_bias, j + p),
                        ToFloat(u.at[p]) + BiasAt(gate_up_bias, x.i + j + p));
        float value, slope;
        Activate(gate, pair.g, value, slope);
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
    if (x.down_bias != nullptr) {
      const T* dy = static_cast<const T*>(grad.dy) + row * x.h;
      for (int64_t j = threadIdx.x; j < x.h; j += kThreads)
        sum = fmaf(ToFloat(dy[j]), x.down_bias[expert * x.h + j], sum);
    }
    sum = Reduce<kThreads>(sum, SumStep());
    if (threadIdx.x == 0) grad.dweights[route] = sum;
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

}  // namespace

void GatherRows(const void* from, const int64_t* routes, int64_t rows, int64_t k, int64_t bytes,
                void* out, CUstream_st* stream) {
  if (rows * bytes == 0) return;
  const auto launch = [&](auto unit) {
    using U = decltype(unit);
    GatherRowsKernel<U><<<BlocksFor(rows * kWarp), kThreads, 0, stream>>>(
        static_cast<const U*>(from), routes, rows, k, bytes / static_cast<int64_t>(sizeof(U)),
        static_cast<U*>(out));
  };
  if (bytes % 16 == 0 && IsAligned(from) && IsAligned(out)) return launch(uint4{});
  launch(uint16_t{});
}

void GatedForward(const ExpertRows& x, const Gate& gate, CUstream_st* stream) {
  if (x.rows * x.i == 0) return;
  WithFloatType(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = PackOf<T>();
    const bool packed = x.i % kPack == 0 && IsAligned(x.gate_up) && IsAligned(x.a);
    if (packed)
      return GatedForwardKernel<T, kPack>
          <<<BlocksFor(x.rows * x.i / kPack), kThreads, 0, stream>>>(x, gate);
    GatedForwardKernel<T, 1><<<BlocksFor(x.rows * x.i), kThreads, 0, stream>>>(x, gate);
  });
}

void GatedBackward(const ExpertRows& x, const Gate& gate, const GatedGradient& g,
                   CUstream_st* stream) {
  if (x.rows == 0) return;
  WithFloatType(x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kPack = PackOf<T>();
    const unsigned blocks = BlocksFor(x.rows, 1);
    const bool packed =
        x.i % kPack == 0 && IsAligned(x.gate_up) && IsAligned(x.a) && IsAligned(g.da);
    if (packed) return GatedBackwardKernel<T, kPack><<<blocks, kThreads, 0, stream>>>(x, gate, g);
    GatedBackwardKernel<T, 1><<<blocks, kThreads, 0, stream>>>(x, gate, g);
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
