#pragma once
#include <string>
#include <vector>

#include "cli/dispatch_flags.h"
#include "optim/initial_values.h"

namespace weir {

// Flags that were given and change nothing here, a line each that says why.
std::vector<std::string> IdleFlags(const TrainingOptions& training, const DispatchFlags& dispatch, const std::string& device, int64_t ranks);

// Prints what there is to say once the model is read: the import's notices, names that nobody else knows (`named`: --names was given),
// biases that stay, weights that an export will lack, an --init that draws none.
void TellOfModel(const Graph& canonical, const InitOptions& init, bool named);

}  // namespace weir
