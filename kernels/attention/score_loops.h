#pragma once
#include <cstdint>

namespace weir {

// x[i] = softcap * tanh(scale * x[i] / softcap)
void CapScores(float* x, int64_t count, float scale, float softcap);

// What one query's row of a tile needs besides its scores.
struct ScoreGradientRow {
  float lse, delta, scale, softcap;  // softcap 0 = none
};
// scores -> p = exp(s - lse);  dp -> ds = p * (dp - delta) * (1 - (s / softcap)^2) * scale, in
// place.
void ScoreGradient(const ScoreGradientRow& row, int64_t count, float* scores, float* dp);

}  // namespace weir
