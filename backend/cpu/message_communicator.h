#pragma once
#include <map>
#include <memory>

#include "backend/communicator.h"
#include "backend/cpu/transport.h"

namespace weir {

// Collectives as messages. Each transfer is a header (who, what, how many bytes) and a payload in pieces of at
// most 1 GiB; receives are posted at once, and the header tells a rank that stands elsewhere from a slow one.
std::unique_ptr<Communicator> MakeMessageCommunicator(std::unique_ptr<Transport> transport);

}  // namespace weir
