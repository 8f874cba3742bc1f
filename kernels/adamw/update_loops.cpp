#include "kernels/adamw/update_loops.h"

#include "graph/split_master.h"
#include "kernels/common/vector_math.h"

namespace weir {
namespace {

// As torch's lerp: from the nearer end, so that the larger share carries no rounding error.
inline bool FromM(const AdamWScalars& s) { return s.one_minus_beta1 < 0.5f; }

inline void Step(const AdamWScalars& s, bool from_m, float gradient, float& p, float& m, float& v) {
  const float g = gradient * s.coefficient, step = g - m;
  const float moment = from_m ? std::fma(s.one_minus_beta1, step, m) : std::fma(-s.beta1, step, g);
  const float square = std::fma(s.one_minus_beta2 * g, g, s.beta2 * v);
  const float denominator = std::sqrt(square) / s.root_correction2 + s.epsilon;
  m = moment;
  v = square;
  p = std::fma(-s.step_size, moment / denominator, p * s.decay);
}

}  // namespace

WEIR_VECTOR_CLONES void AdamWUpdate(const AdamWScalars& scalars, const float* gradient,
                                    int64_t count, float* p, float* m, float* v) {
  const AdamWScalars s = scalars;
  const bool from_m = FromM(s);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) Step(s, from_m, gradient[i], p[i], m[i], v[i]);
}

WEIR_VECTOR_CLONES void SplitAdamWUpdate(const AdamWScalars& scalars, const float* gradient,
                                         int64_t count, uint16_t* high, uint16_t* low, float* m,
                                         float* v) {
  const AdamWScalars s = scalars;
  const bool from_m = FromM(s);
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const auto stored = std::bit_cast<uint32_t>(v[i]);
    float p = std::bit_cast<float>(JoinMaster(high[i], low[i], TieOf(stored)));
    float square = std::bit_cast<float>(WithoutTie(stored)), moment = m[i];
    Step(s, from_m, gradient[i], p, moment, square);
    const SplitBits halves = SplitMaster(std::bit_cast<uint32_t>(p));
    high[i] = halves.high;
    low[i] = halves.low;
    m[i] = moment;
    v[i] = std::bit_cast<float>(WithTie(std::bit_cast<uint32_t>(square), halves.tie));
  }
}

}  // namespace weir
