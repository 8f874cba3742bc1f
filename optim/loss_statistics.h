#pragma once
#include <cstdint>

namespace weir {

// Running mean and variance of the losses that were trained on, weighing about the last kWindow of them.
struct LossStatistics {
  static constexpr int64_t kWindow = 128, kLeast = 32;

  int64_t count = 0;
  double mean = 0, variance = 0;
  int64_t spikes = 0;  // in a row, since the last loss that was no spike

  // More than z standard deviations above the mean, once kLeast losses are known. z = 0: never.
  bool IsSpike(double loss, double z) const;
  void Add(double loss);
};

}  // namespace weir
