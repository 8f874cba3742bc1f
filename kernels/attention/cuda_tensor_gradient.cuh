// What both gradient kernels make of a block of scores and dp = dy . v.
#pragma once
#include "kernels/attention/cuda_fragments.cuh"

namespace weir::cuda {

// c -> p = exp(score - lse), dp -> ds / scale = p (dp - delta) slope; zero where the score is hidden. lse
// (times log2(e)) and delta take the column block n and the element e of row block m.
template <int kRowTiles, int kColumnTiles, class Lse, class Delta>
__device__ void DifferentiateScores(const Scores& scores, const Lse& lse, const Delta& delta,
                                    Blocks<kRowTiles, kColumnTiles>& c, Blocks<kRowTiles, kColumnTiles>& dp) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float score = c[m][n][e], p = Exp2(fmaf(score, scores.slope, -lse(m, n, e)));
        const float ds = p * (dp[m][n][e] - delta(m, n, e));
        const float capped = fmaxf(score, -1.0f);  // the tanh of a softcap; a hidden score is -infinity
        c[m][n][e] = p;
        dp[m][n][e] = scores.inner == 0 ? ds : ds * fmaf(-capped, capped, 1.0f);
      }
    }
  }
}

}  // namespace weir::cuda
