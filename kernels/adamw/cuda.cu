#include <cstdio>

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

__global__ void AdamWKernel(AdamWAttributes attributes, const double* learning_rate, const int64_t* step,
                            const float* coefficient, const float* gradient, int64_t count, int64_t packs,
                            float* p, float* m, float* v) {
  __shared__ Scalars shared;
  const float factor = *coefficient;
  if (!isfinite(factor)) return;
  if (threadIdx.x == 0) shared = ScalarsOf(attributes, *learning_rate, *step, factor);
  __syncthreads();
  const Scalars s = shared;
  const bool from_m = s.one_minus_beta1 < 0.5f;
  for (int64_t k = FirstIndex(); k < packs; k += IndexStride()) {
    const Pack<float> g = LoadPack(gradient + 4 * k);
    Pack<float> pp = LoadPack(p + 4 * k), mm = LoadPack(m + 4 * k), vv = LoadPack(v + 4 * k);
#pragma unroll
    for (int i = 0; i < 4; ++i) Update(s, from_m, g.at[i], pp.at[i], mm.at[i], vv.at[i]);
    StorePack(p + 4 * k, pp);
    StorePack(m + 4 * k, mm);
    StorePack(v + 4 * k, vv);
  }
  for (int64_t k = 4 * packs + FirstIndex(); k < count; k += IndexStride())
    Update(s, from_m, gradient[k], p[k], m[k], v[k]);
}

}  // namespace

void AdamW(const AdamWAttributes& attributes, const double* learning_rate, const int64_t* step,
           const float* coefficient, const float* gradient, int64_t count, float* p, float* m, float* v,
           CUstream_st* stream) {
  if (count == 0) return;
  const int64_t packs = IsAligned(gradient) && IsAligned(p) && IsAligned(m) && IsAligned(v) ? count / 4 : 0;
  AdamWKernel<<<BlocksFor(packs > 0 ? packs : count), kThreads, 0, stream>>>(
      attributes, learning_rate, step, coefficient, gradient, count, packs, p, m, v);
}

}  // namespace weir::cuda
