#pragma once
#include "backend/cuda/gpu_link.h"
#include "backend/device.h"

namespace weir {

// Links of `device`'s GPU through NCCL, which is loaded with the first.
GpuLinkFactory NcclLinks(Device& device);

}  // namespace weir
