#pragma once
#include <memory>

#include "backend/communicator.h"
#include "backend/cpu/coordinator.h"

namespace weir {

// The world communicator of a run whose ranks are processes: bytes move through Gloo's TCP transport, hearts
// and failures through a Coordinator. Returns when every rank has come. Destroying it waits for the others.
std::unique_ptr<Communicator> MakeGlooCommunicator(const RankEnvironment& environment, const CommOptions& options = {});

}  // namespace weir
