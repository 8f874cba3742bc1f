#include <cstdio>

#include "graph/split_master.h"
#include "kernels/adamw/cuda.h"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"

namespace weir::cuda {
namespace {

// As AdamWStep of config.h: in double, then rounded once.
struct Scalars {
  float coefficient, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, step_size,
      root_correction2;
};
__device__ Scalars ScalarsOf(const AdamWAttributes& a, double learning_rate, int64_t t, float coefficient) {
  if (t < 1 || !isfinite(learning_rate) || learning_rate < 0) {
    printf("AdamW: step %lld, learning_rate %g: expected a step >= 1 and a finite rate >= 0\n",
           static_cast<long long>(t), learning_rate);
    __trap();
  }
  const double step = static_cast<double>(t);
  return {coefficient,
          static_cast<float>(1 - learning_rate * a.weight_decay),
          static_cast<float>(a.beta1),
          static_cast<float>(1 - a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1 - a.beta2),
          static_cast<float>(a.epsilon),
          static_cast<float>(learning_rate / (1 - pow(a.beta1, step))),
          static_cast<float>(sqrt(1 - pow(a.beta2, step)))};
}

// As torch's lerp: the moment starts from the nearer end.
__device__ inline void Update(const Scalars& s, bool from_m, float gradient, float& p, float& m, float& v) {
  const float g = gradient * s.coefficient, step = g - m;
  const float moment = from_m ? fmaf(s.one_minus_beta1, step, m) : fmaf(-s.beta1, step, g);
  const float square = fmaf(s.one_minus_beta2 * g, g, s.beta2 * v);
  const float denominator = sqrtf(square) / s.root_correction2 + s.epsilon;
  m = moment;
  v = square;
  p = fmaf(-s.step_size, moment / denominator, p * s.decay);
}

// The scalars of the step, once per block; false where nothing changes.
__device__ bool ReadScalars(const AdamWAttributes& attributes, const AdamWInputs& in, Scalars& s) {
  __shared__ Scalars shared;
  const float factor = *in.coefficient;
  if (!isfinite(factor)) return false;
  if (threadIdx.x == 0) shared = ScalarsOf(attributes, *in.learning_rate, *in.step, factor);
  __syncthreads();
  s = shared;
  return true;
}

__global__ void AdamWKernel(AdamWAttributes attributes, AdamWInputs in, int64_t count, int64_t packs, float* p, float* m,
                            float* v) {
  Scalars s;
  if (!ReadScalars(attributes, in, s)) return;
  const bool from_m = s.one_minus_beta1 < 0.5f;
  for (int64_t k = FirstIndex(); k < packs; k += IndexStride()) {
    const Pack<float> g = LoadPack(in.gradient + 4 * k);
    Pack<float> pp = LoadPack(p + 4 * k), mm = LoadPack(m + 4 * k), vv = LoadPack(v + 4 * k);
#pragma unroll
    for (int i = 0; i < 4; ++i) Update(s, from_m, g.at[i], pp.at[i], mm.at[i], vv.at[i]);
    StorePack(p + 4 * k, pp);
    StorePack(m + 4 * k, mm);
    StorePack(v + 4 * k, vv);
  }
  for (int64_t k = 4 * packs + FirstIndex(); k < count; k += IndexStride())
    Update(s, from_m, in.gradient[k], p[k], m[k], v[k]);
}

__device__ inline void SplitUpdate(const Scalars& s, bool from_m, float gradient, uint16_t& high, uint16_t& low, float& m,
                                   float& v) {
  const uint32_t stored = __float_as_uint(v);
  float p = __uint_as_float(JoinMaster(high, low, TieOf(stored))), square = __uint_as_float(WithoutTie(stored));
  Update(s, from_m, gradient, p, m, square);
  const SplitBits halves = SplitMaster(__float_as_uint(p));
  high = halves.high;
  low = halves.low;
  v = __uint_as_float(WithTie(__float_as_uint(square), halves.tie));
}

using Halves = Pack<uint16_t, 4>;
__device__ inline Halves* HalvesAt(uint16_t* values, int64_t pack) { return reinterpret_cast<Halves*>(values) + pack; }

__global__ void SplitAdamWKernel(AdamWAttributes attributes, AdamWInputs in, int64_t count, int64_t packs, uint16_t* high,
                                 uint16_t* low, float* m, float* v) {
  Scalars s;
  if (!ReadScalars(attributes, in, s)) return;
  const bool from_m = s.one_minus_beta1 < 0.5f;
  for (int64_t k = FirstIndex(); k < packs; k += IndexStride()) {
    const Pack<float> g = LoadPack(in.gradient + 4 * k);
    Halves hh = *HalvesAt(high, k), ll = *HalvesAt(low, k);
    Pack<float> mm = LoadPack(m + 4 * k), vv = LoadPack(v + 4 * k);
#pragma unroll
    for (int i = 0; i < 4; ++i) SplitUpdate(s, from_m, g.at[i], hh.at[i], ll.at[i], mm.at[i], vv.at[i]);
    *HalvesAt(high, k) = hh;
    *HalvesAt(low, k) = ll;
    StorePack(m + 4 * k, mm);
    StorePack(v + 4 * k, vv);
  }
  for (int64_t k = 4 * packs + FirstIndex(); k < count; k += IndexStride())
    SplitUpdate(s, from_m, in.gradient[k], high[k], low[k], m[k], v[k]);
}

}  // namespace

void AdamW(const AdamWAttributes& attributes, const AdamWInputs& in, int64_t count, float* p, float* m, float* v,
           CUstream_st* stream) {
  if (count == 0) return;
  const int64_t packs = IsAligned(in.gradient) && IsAligned(p) && IsAligned(m) && IsAligned(v) ? count / 4 : 0;
  AdamWKernel<<<BlocksFor(packs > 0 ? packs : count), kThreads, 0, stream>>>(attributes, in, count, packs, p, m, v);
}

void SplitAdamW(const AdamWAttributes& attributes, const AdamWInputs& in, int64_t count, uint16_t* high, uint16_t* low,
                float* m, float* v, CUstream_st* stream) {
  if (count == 0) return;
  const bool aligned = IsAligned(in.gradient) && IsAligned(high, 8) && IsAligned(low, 8) && IsAligned(m) && IsAligned(v);
  const int64_t packs = aligned ? count / 4 : 0;
  SplitAdamWKernel<<<BlocksFor(packs > 0 ? packs : count), kThreads, 0, stream>>>(attributes, in, count, packs, high, low,
                                                                                 m, v);
}

}  // namespace weir::cuda
