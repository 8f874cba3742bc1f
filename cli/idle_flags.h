#pragma once
#include <string>
#include <vector>

#include "cli/dispatch_flags.h"

namespace weir {

// Flags that were given and change nothing here, a line each that says why.
std::vector<std::string> IdleFlags(const TrainingOptions& training, const DispatchFlags& dispatch, const std::string& device, int64_t ranks);

}  // namespace weir
