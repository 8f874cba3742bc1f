#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "graph/error.h"

namespace weir {

void LearningRateSchedule::Validate() const {
  const bool known = kind == "constant" || kind == "linear" || kind == "cosine" || kind == "wsd";
  WEIR_CHECK(known, ErrorCode::kInvalidArgument, "--schedule=", kind,
             " is unknown; expected constant, linear, cosine or wsd");
  WEIR_CHECK(std::isfinite(peak) && peak >= 0 && std::isfinite(minimum) && minimum >= 0,
             ErrorCode::kInvalidArgument, "--learning-rate=", peak, " and --min-learning-rate=",
             minimum, " must be finite and not negative");
  WEIR_CHECK(warmup_steps >= 0 && warmup_steps <= total_steps, ErrorCode::kInvalidArgument,
             "--warmup-steps=", warmup_steps, " must lie in 0..", total_steps, " (--steps)");
  WEIR_CHECK(decay_steps >= 0 && decay_steps <= total_steps, ErrorCode::kInvalidArgument,
             "--decay-steps=", decay_steps, " must lie in 0..", total_steps, " (--steps)");
}

double LearningRateSchedule::At(int64_t step) const {
  if (step < warmup_steps) {
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  }
  if (kind == "constant") return peak;
  const int64_t start = kind == "wsd" ? std::max(warmup_steps, total_steps - decay_steps) : warmup_steps;
  const double length = static_cast<double>(std::max<int64_t>(total_steps - start, 1));
  const double t = std::clamp(static_cast<double>(step - start) / length, 0.0, 1.0);
  if (kind == "cosine") return minimum + (peak - minimum) / 2 * (1 + std::cos(std::numbers::pi * t));
  return minimum + (peak - minimum) * (1 - t);
}

}  // namespace weir
