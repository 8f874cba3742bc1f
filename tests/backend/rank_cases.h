#pragma once
#include "backend/communicator.h"

namespace weir {

// What every communicator must do; each runs on all ranks at once and checks with EXPECT.
void CheckAllCollectives(Communicator& world);  // zero bytes, uneven counts, tickets out of order, tags
void CheckGroups(Communicator& world);          // SetLayout must not have been called; world of 1, 2, 4 or 8
void CheckTreeReduce(Communicator& world);

// The collective paths of the watchdog tests, by name; ranks other than `absent` call it.
struct CollectivePath {
  const char* name;
  void (*call)(Communicator&, int64_t absent);
};
std::span<const CollectivePath> AllCollectivePaths();

}  // namespace weir
