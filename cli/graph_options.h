#pragma once
#include "cli/options.h"
#include "graph_passes/pipeline.h"

namespace weir {

// --precision, --strip: how the training graph is rewritten; shared by rewrite, plan and train.
po::options_description GraphOptions(TrainingOptions& training);
// Throws UsageError for sizes of a batch that no step has: bytes of larger ones do not fit 64 bits.
void CheckBatch(const char* batch_flag, int64_t batch, int64_t sequence);
// Throws UsageError when the device of --device does not compute in --precision.
void CheckPrecision(const TrainingOptions& training, const std::string& device);

}  // namespace weir
