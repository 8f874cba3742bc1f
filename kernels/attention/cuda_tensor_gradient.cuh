// What both gradient kernels make of a tile of scores and of dp = dy . v. lse (times log2(e)) and delta take
// the column block and the element.
#pragma once
#include "kernels/attention/cuda_fragments.cuh"

namespace weir::cuda {

// c -> p = exp(score - lse), zero where the score is hidden.
template <class Lse>
__device__ void Exponentiate(const Scores& scores, const Lse& lse, TileBlocks& c) {
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = Exp2(fmaf(c[n][e], scores.slope, -lse(n, e)));
  }
}

// dp -> ds / scale = p (dp - delta), times 1 - tanh^2 with a softcap: p tells the score.
template <class Lse, class Delta>
__device__ void Differentiate(const Scores& scores, const Lse& lse, const Delta& delta, const TileBlocks& p,
                              TileBlocks& dp) {
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) dp[n][e] = p[n][e] * (dp[n][e] - delta(n, e));
  }
  if (scores.inner == 0) return;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float tanh = p[n][e] > 0 ? (__log2f(p[n][e]) + lse(n, e)) / scores.slope : 0.0f;
      dp[n][e] *= fmaf(-tanh, tanh, 1.0f);
    }
  }
}

}  // namespace weir::cuda
