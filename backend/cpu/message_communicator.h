#pragma once
#include <map>
#include <memory>

#include "backend/communicator.h"
#include "backend/cpu/transport.h"

namespace weir {

inline constexpr size_t kMaxMessage = size_t{1} << 30;

// Collectives as messages. Each transfer is a header (who, what, how many bytes) and a payload in pieces of at
// most `max_message` bytes; receives are posted at once, and the header tells a rank that stands elsewhere from
// a slow one.
std::unique_ptr<Communicator> MakeMessageCommunicator(std::unique_ptr<Transport> transport,
                                                      size_t max_message = kMaxMessage);

}  // namespace weir
