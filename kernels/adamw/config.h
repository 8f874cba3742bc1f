#pragma once
#include <cmath>

#include "graph/attributes.h"
#include "graph/error.h"

namespace weir {

// The scalars of one AdamW step, in double.
struct AdamWStep {
  double beta1, beta2, epsilon;
  double decay;             // 1 - learning_rate * weight_decay
  double step_size;         // learning_rate / (1 - beta1^t)
  double root_correction2;  // sqrt(1 - beta2^t)

  AdamWStep(const Attributes& attributes, double learning_rate, int64_t t)
      : beta1(attributes.Float("beta1", 0.9)),
        beta2(attributes.Float("beta2", 0.999)),
        epsilon(attributes.Float("epsilon", 1e-8)),
        decay(1 - learning_rate * attributes.Float("weight_decay", 0.01)),
        step_size(learning_rate / (1 - std::pow(beta1, static_cast<double>(t)))),
        root_correction2(std::sqrt(1 - std::pow(beta2, static_cast<double>(t)))) {
    WEIR_CHECK(t >= 1, ErrorCode::kInvalidArgument, "AdamW: step is ", t,
               ", expected 1 for the first update");  // C3
    WEIR_CHECK(std::isfinite(learning_rate) && learning_rate >= 0, ErrorCode::kInvalidArgument,
               "AdamW: learning_rate is ", learning_rate, ", expected a finite value >= 0");  // C4
  }
};

}  // namespace weir
