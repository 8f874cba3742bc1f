#pragma once
#include "backend/kernel.h"

namespace weir {

// Throws InvalidArgument naming the first wrong label. `bad` is one element of device scratch.
// Waits for the queue.
void CheckLabelsOnDevice(KernelContext& context, const Tensor& labels, int64_t vocabulary,
                         int64_t* bad);

}  // namespace weir
