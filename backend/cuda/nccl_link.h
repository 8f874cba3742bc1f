#pragma once
#include "backend/cuda/gpu_link.h"
#include "backend/cuda/cuda_stream.h"

namespace weir {

// Links of the calling thread's GPU through NCCL, which is loaded with the first; `compute` is their compute queue.
GpuLinkFactory NcclLinks(CudaStream& compute);

}  // namespace weir
