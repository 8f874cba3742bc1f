#pragma once
#include "backend/cuda/gpu_link.h"
#include "backend/cuda/cuda_stream.h"

namespace weir {

// Links between GPUs of one host that read and write each other's memory: a sender's copy engine writes into the receiver's
// buffer, and no kernel takes multiprocessors from the products beside it. Ranks are processes or threads.
GpuLinkFactory CopyLinks(CudaStream& compute);

// Whether all ranks are on this host and the GPU of each, which is the calling thread's, reaches the memory of all others: tried
// out. Collective.
bool CanCopyBetween(Communicator& host);

}  // namespace weir
