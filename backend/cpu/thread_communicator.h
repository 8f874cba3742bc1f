#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "backend/communicator.h"
#include "backend/cpu/message_communicator.h"

namespace weir {

// Communicators of W ranks that are threads of this process, one per rank. Each may be used, and destroyed,
// by another thread; a rank whose communicator is destroyed has left.
std::vector<std::unique_ptr<Communicator>> MakeThreadCommunicators(
    int64_t ranks, std::chrono::milliseconds timeout = std::chrono::seconds(60), size_t max_message = kMaxMessage);

// Runs fn(communicator) on W threads. The first exception of any rank aborts all and is rethrown when every
// thread has returned.
void RunRanks(int64_t ranks, const std::function<void(Communicator&)>& fn,
              std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace weir
