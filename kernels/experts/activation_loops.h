#pragma once
#include <cstdint>

#include "kernels/experts/activation.h"

namespace weir {

// One row: gate_up = [g;u], `width` elements each; a[j] = act(g) * (u + beta), clamped.
void GatedForwardRow(const ExpertActivation& act, const float* gate_up, int64_t width, float* a);

// As above, and in place: gate_up becomes [dg;du] for da[j] = weight * da[j].
void GatedBackwardRow(const ExpertActivation& act, float* gate_up, int64_t width, float weight,
                      const float* da, float* a);

}  // namespace weir
