#include "kernels/adamw/update_loops.h"

#include "kernels/common/vector_math.h"

namespace weir {

WEIR_VECTOR_CLONES void AdamWUpdate(const AdamWScalars& scalars, const float* gradient,
                                    int64_t count, float* p, float* m, float* v) {
  const AdamWScalars s = scalars;
  // As torch's lerp: from the nearer end, so that the larger share carries no rounding error.
  const bool from_m = s.one_minus_beta1 < 0.5f;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * s.coefficient, step = g - m[i];
    const float moment =
        from_m ? std::fma(s.one_minus_beta1, step, m[i]) : std::fma(-s.beta1, step, g);
    const float square = std::fma(s.one_minus_beta2 * g, g, s.beta2 * v[i]);
    const float denominator = std::sqrt(square) / s.root_correction2 + s.epsilon;
    m[i] = moment;
    v[i] = square;
    p[i] = std::fma(-s.step_size, moment / denominator, p[i] * s.decay);
  }
}

}  // namespace weir
