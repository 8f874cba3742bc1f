#pragma once
#include "backend/kernel.h"

namespace weir {

// Every rank's rows straight into the output; `copy` serves one rank alone.
void LaunchAllGatherRows(KernelContext& context, void (*copy)(KernelContext&));

}  // namespace weir
