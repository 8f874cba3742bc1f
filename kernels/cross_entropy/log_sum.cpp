#include "kernels/cross_entropy/log_sum.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/vector_loops.h"

namespace weir {

void LogSum::Add(const float* logits, int64_t width, int64_t leaf_columns) {
  for (int64_t first = 0; first < width; first += leaf_columns) {
    const int64_t leaf = std::min(leaf_columns, width - first);
    const float leaf_top = MaxOf(logits + first, leaf);
    // A leaf of -infinity alone adds nothing; exp(-inf - -inf) would be NaN.
    const float leaf_sum = SumExp(logits + first, leaf, std::isfinite(leaf_top) ? leaf_top : 0);
    const float joined = std::max(top, leaf_top);
    if (std::isfinite(joined)) {
      sum = sum * std::exp(top - joined) + leaf_sum * std::exp(leaf_top - joined);
    } else {
      sum += leaf_sum;
    }
    top = joined;
  }
}

float LogSum::Value() const { return top + std::log(sum); }

void LogitsGradient(const float* logits, int64_t width, int64_t label, float lse, float factor,
                    float* out) {
  const bool here = label >= 0 && label < width;
  const float hit = here ? std::exp(logits[label] - lse) - 1 : 0;
  ScaledExp(logits, width, lse, factor, out);
  if (here) out[label] = hit * factor;
}

}  // namespace weir
