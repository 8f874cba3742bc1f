#pragma once
#include <vector>

#include "optim/verify.h"

namespace weir {

// Appends to `out` what a forward pass of the model says of the reference's logits, logits_2 and router.* tensors: chosen experts as
// sets, their weights, the gates' products.
void CompareForward(const Graph& canonical, const NamedTensors& file, const VerifyTolerances& tolerances, DeviceKind device,
                    std::vector<Comparison>& out);

}  // namespace weir
