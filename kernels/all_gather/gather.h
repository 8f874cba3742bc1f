#pragma once
#include "backend/kernel.h"

namespace weir {

// Every rank's rows straight into the output; `copy` serves one rank alone. Of the context's communicator, or `communicator`.
void LaunchAllGatherRows(KernelContext& context, void (*copy)(KernelContext&), Communicator* communicator = nullptr);

}  // namespace weir
