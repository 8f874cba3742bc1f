// What becomes of a grouped product's tile while it is in registers.
#pragma once
#include "kernels/experts/gate.cuh"
#include "kernels/experts/grouped_pipeline.cuh"

namespace weir::cuda {

// Lane q of a quad gives word w to lane w, as its word q.
__device__ inline void TransposeQuad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

__device__ inline uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float Low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float High(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
__device__ inline float Rounded(float x) { return ToFloat(FromFloat<BFloat16>(x)); }

// A thread's share of a tile: rows `row` and row + 8; as the products leave it, word j of a row is
// columns 8 j + 2 q, 8 j + 2 q
// + 1 for lane q of the quad; after TransposeQuad of words 4 g .. 4 g + 3 it is columns Column(g)
// .. + 7.
struct Share {
  int expert, row, end, first;
  __device__ int Column(int g) const {
    return first + 32 * g + 8 * (static_cast<int>(threadIdx.x) % 4);
  }
};

// No biases and no clamps.
__device__ inline bool IsPlain(const ExpertRows& x, const Gate& gate) {
  return x.gate_up_bias == nullptr && isinf(gate.limit);
}
// Of the expert whose rows these are; behind its last row anything.
__device__ inline const float* BiasOf(const ExpertRows& x, const Share& share) {
  if (x.gate_up_bias == nullptr || share.row >= share.end) return nullptr;
  return x.gate_up_bias + x.ids[RouteAt(x.routes, share.row)] * 2 * x.i;
}
template <bool kPlain>
__device__ Pair PairOf(const Gate& gate, const float* bias, int64_t column, int64_t width, float g,
                       float u) {
  if constexpr (kPlain) return Pair(g, u);
  if (bias == nullptr || column >= width) return Pair(gate, g, u);
  return Pair(gate, g + bias[column], u + bias[width + column]);
}

struct StoreEpilogue {
  unsigned char* out;
  int width;

  __device__ void operator()(const Share& share, const float (&c)[128]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = share.row + 8 * half;
#pragma unroll
      for (int g = 0; g < 8; ++g) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = 4 * (4 * g + j) + 2 * half;
          w[j] = PackPair(c[at], c[at + 1]);
        }
        TransposeQuad(w);
        if (row < share.end && share.Column(g) < width)
          *reinterpret_cast<uint4*>(out + (row * width + share.Column(g)) * 2) =
              uint4{w[0], w[1], w[2], w[3]};
      }
    }
  }
};

// The tile's first 128 columns are gate's, the others up's: a = act(g) (u + beta), g and u rounded
// as if stored.
struct GateEpilogue {
  ExpertRows x;
  Gate gate;

  __device__ void operator()(const Share& share, const float (&c)[128]) const {
    IsPlain(x, gate) ? Apply<true>(share, c) : Apply<false>(share, c);
  }

 private:
  template <bool kPlain>
  __device__ void Apply(const Share& share, const float (&c)[128]) const {
    const float* bias = kPlain ? nullptr : BiasOf(x, share);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = share.row + 8 * half;
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = 4 * (4 * g + j) + 2 * half;
          const uint32_t gs = PackPair(c[at], c[at + 1]), us = PackPair(c[64 + at], c[64 + at + 1]);
          const int column =
              share.first + 8 * (4 * g + j) + 2 * (static_cast<int>(threadIdx.x) % 4);
          w[j] =
              PackPair(Activated(PairOf<kPlain>(gate, bias, column, x.i, Low(gs), Low(us))),
                       Activated(PairOf<kPlain>(gate, bias, column + 1, x.i, High(gs), High(us))));
        }
        TransposeQuad(w);
        if (row < share.end && share.Column(g) < x.i)
          *reinterpret_cast<uint4*>(static_cast<BFloat16*>(x.a) + row * x.i + share.Column(g)) =
              uint4{w[0], w[1], w[2], w[3]};
      }
    }
  }
  __device__ float Activated(const Pair& pair) const {
    float value, slope;
    ActivateSwiglu(gate.alpha, pair.g, value, slope);
    return value * (pair.u + gate.beta);
  }
};

}  // namespace weir::cuda
