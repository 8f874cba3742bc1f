#pragma once
#include <cstdint>

namespace weir {

// Calls of operator new in this program so far (all threads), for tests of "no allocation".
int64_t AllocationCount();

}  // namespace weir
