#pragma once
#include <chrono>
#include <memory>

#include "backend/communicator.h"
#include "backend/device.h"

namespace weir {

// Moves memory of `device` between the GPUs of the ranks of `host`, as its own world. `host` carries the bootstrap, the
// layout and the failures, and stays there for values in host memory; both must outlive the result. The GPUs' copy engines
// do it where all ranks are on one host and reach each other's memory: they take no multiprocessors from the products beside them.
// NCCL does it elsewhere, and with WEIR_LINK=nccl. Collective; the same environment on all ranks. A transfer that has begun and is not over after `timeout` ends the run.
// Throws DeviceError when NCCL cannot be loaded, InvalidArgument when two ranks share a GPU or cannot copy, UnsupportedOp in a
// build without CUDA or NCCL.
//
// What differs from host memory (Communicator says the rest):
//  - Start* enqueues: the transfer begins when the work enqueued before on the device has ended. Wait holds up work
//    enqueued later, not the caller; memory may be reused by such work. Several transfers may be under way; those of a
//    group run in the order they were started.
//  - What StartSend and StartReceive start leaves at the next Wait or exchange of the group, all together, and is over
//    together. Messages of one (sender, receiver) meet in the order they were started, whatever their tags. One that
//    has left holds up its group until the other end has left too: start what you receive before waiting for what you send,
//    and let what leaves together at one end leave together at the other.
//  - A peer may appear several times on a side of StartExchange, this rank once: those of a pair meet in order. At most
//    2048 transfers in one exchange.
//  - Transfers of no bytes do nothing: a Barrier is the host's.
//  - Failures show in Start*, Wait and ThrowIfAborted after they happened, and what was received then is garbage: look
//    (ThrowIfAborted) before using what a finished queue has computed.
std::unique_ptr<Communicator> MakeNcclCommunicator(Communicator& host, Device& device,
                                                   std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace weir
