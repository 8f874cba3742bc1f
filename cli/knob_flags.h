#pragma once
#include <set>
#include <string>
#include <vector>

#include "cli/dispatch_flags.h"
#include "graph_passes/pipeline.h"
#include "optim/checkpoint_shards.h"

namespace weir {

// Everything about a step that a flag of `plan` and `train` decides and memory or time depends on.
struct PlanKnobs {
  int64_t micro_batch = 1, sequence = 4096, grad_accumulation = 1;
  DispatchFlags dispatch;
  TrainingOptions training;  // layout.world is the number of ranks; `dispatch` is applied to it
  int64_t save_every = 0;    // of train, which has `staging` for it
  Staging staging = Staging::kNone;
};

using FlagNames = std::set<std::string>;  // without "--"

// Flags that a search may set otherwise, and those of checkpoints. All other flags of `plan` are the same in every plan of a search.
bool IsKnobFlag(const std::string& name);

// The flags that turn `base` into `knobs`, and those of `always`: "--strip 8192 --recompute layer".
std::string FlagsBeyond(const PlanKnobs& base, const PlanKnobs& knobs, const FlagNames& always = {});

// Those of `flags` that `knobs` has otherwise: "--micro-batch 4 to 1".
std::vector<std::string> ChangedFlags(const FlagNames& flags, const PlanKnobs& given, const PlanKnobs& knobs);
// Sets those of `flags` in `knobs` to what they are in `given`.
void KeepFlags(const FlagNames& flags, const PlanKnobs& given, PlanKnobs& knobs);

}  // namespace weir
