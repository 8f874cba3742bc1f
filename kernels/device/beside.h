#pragma once
#include <functional>

#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/nccl_communicator.h"
#include "backend/kernel.h"

namespace weir {

// nullptr: on one rank, or the communicator is wrapped in another, and all runs in order.
inline NcclCommunicator* GpusOf(const KernelContext& c) { return dynamic_cast<NcclCommunicator*>(c.communicator); }

// Runs `work` with a communicator and the queue of its work: beside the compute queue, behind what is on that now.
void RunBeside(KernelContext& c, const std::function<void(Communicator&, CUstream_st*)>& work);

// What is enqueued later on the compute queue begins after all that is beside it.
void JoinAllBeside(KernelContext& c);

}  // namespace weir
