#include "kernels/attention/score_loops.h"

#include "kernels/common/vector_math.h"

namespace weir {

WEIR_VECTOR_CLONES void CapScores(float* x, int64_t count, float scale, float softcap) {
  for (int64_t i = 0; i < count; ++i) x[i] = softcap * vector_math::Tanh(x[i] * scale / softcap);
}

WEIR_VECTOR_CLONES void ScoreGradient(const ScoreGradientRow& row, int64_t count, float* scores,
                                      float* dp) {
  const ScoreGradientRow r = row;
  const float inverse = r.softcap > 0 ? 1 / r.softcap : 0;
#pragma GCC ivdep
  for (int64_t j = 0; j < count; ++j) {
    const float t = scores[j] * inverse, p = vector_math::Exp(scores[j] - r.lse);
    scores[j] = p;
    dp[j] = p * (dp[j] - r.delta) * ((1 - t * t) * r.scale);
  }
}

}  // namespace weir
