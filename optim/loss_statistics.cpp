#include "optim/loss_statistics.h"

#include <algorithm>
#include <cmath>

namespace weir {

bool LossStatistics::IsSpike(double loss, double z) const {
  return z > 0 && count >= kLeast && loss > mean + z * std::sqrt(variance);
}

void LossStatistics::Add(double loss) {
  ++count;
  spikes = 0;
  const double weight = 1 / static_cast<double>(std::min(count, kWindow)), difference = loss - mean;
  mean += weight * difference;
  variance = (1 - weight) * (variance + weight * difference * difference);
}

}  // namespace weir
