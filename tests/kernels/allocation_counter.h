#pragma once
#include <cstdint>

namespace weir {

// Calls of operator new in this program so far (all threads), for tests of "no allocation".
int64_t AllocationCount();

// Bytes of it that live, and the most that lived since the last PeakBytes().
int64_t LiveBytes();
int64_t PeakBytes();

}  // namespace weir
