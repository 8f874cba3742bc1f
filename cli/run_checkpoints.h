#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/options.h"
#include "optim/checkpoint.h"
#include "optim/trainer.h"

namespace weir {

struct CheckpointFlags {
  int64_t save_every = 0, keep = 3, keep_every = 0;
  std::string resume = "none";

  po::options_description Options();
  void Check() const;  // throws UsageError
  bool enabled() const { return save_every > 0; }
  bool resumes() const { return resume == "auto"; }
};

// The checkpoints of one run, in <run>/checkpoints.
class RunCheckpoints {
 public:
  // `identity`: what must not change for a resumed run to read on in the same data.
  // Rank 0 `leads`: it alone writes and tells; every rank reads.
  RunCheckpoints(const CheckpointFlags& flags, const std::filesystem::path& run, std::map<std::string, std::string> identity,
                 bool leads);

  // Before the first step: goes on from the newest whole checkpoint when asked to, and checks that the disk
  // has room for as many as will be kept. Returns the step to go on after, 0 for a new run; tells on stderr.
  int64_t Start(Trainer& trainer) const;
  void AfterStep(const Trainer& trainer, int64_t step) const;  // saves when due
  void Save(const Trainer& trainer) const;  // unless there are none, or this step is saved already

 private:
  const CheckpointFlags flags_;
  const std::filesystem::path folder_;
  const Checkpoints checkpoints_;
  const std::map<std::string, std::string> identity_;
  const bool leads_;
  mutable int64_t saved_ = 0;
};

}  // namespace weir
