#pragma once
#include <string>

#include "optim/trainer.h"

namespace weir {

// Where the seconds of each step went: one band per part that took any. "" when nothing was timed.
std::string SplitPicture(const Metrics& metrics);

// One row per routed layer, one column per logged step: the busiest expert's routes over the mean. "" when none was logged.
std::string ExpertLoadPicture(const Metrics& metrics);

}  // namespace weir
