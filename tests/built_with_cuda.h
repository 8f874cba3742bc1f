#pragma once
#include "backend/kernel.h"
#include "graph/op_schema.h"

namespace weir {

// Whether plans for GPUs can be made; a GPU is not needed for that.
inline bool BuiltWithCuda() { return FindKernel(DeviceKind::kCuda, GetOp("AdamW", "ai.weir")) != nullptr; }

}  // namespace weir
