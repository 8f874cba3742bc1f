#pragma once
#include <cstdint>
#include <string>

namespace weir {

// Learning rate of step s (0-based), T = total_steps, W = warmup_steps:
//   s < W:     peak * (s + 1) / W
//   constant:  peak
//   linear:    min + (peak - min) * (1 - t),                t = (s - W) / (T - W)
//   cosine:    min + (peak - min) / 2 * (1 + cos(pi * t))   Loshchilov & Hutter 2017, arXiv:1608.03983
//   wsd:       peak, then linear to min over the last decay_steps   Hu et al. 2024, arXiv:2404.06395
// Steps at or past T stay at the schedule's end.
struct LearningRateSchedule {
  std::string kind = "cosine";
  double peak = 3e-4;
  double minimum = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 1;
  int64_t decay_steps = 0;  // wsd only

  // Throws InvalidArgument for an unknown kind, negative values or warmup_steps > total_steps.
  void Validate() const;
  double At(int64_t step) const;
};

}  // namespace weir
