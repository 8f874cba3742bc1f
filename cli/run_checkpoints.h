#pragma once
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/run_folder.h"
#include "optim/checkpoint.h"
#include "optim/checkpoint_writer.h"
#include "optim/initial_load.h"
#include "optim/trainer.h"

namespace weir {

struct CheckpointFlags {
  int64_t save_every = 0, keep = 3, keep_every = 0;
  std::string resume = "none", save_async = "on", save_tied = "once", initial_load;  // initial_load "": none
  bool initial_load_model_only = false;

  po::options_description Options();
  // Those of them that decide what a plan has: --save-every and --save-async.
  po::options_description PlanOptions();
  void Check() const;  // throws UsageError
  bool enabled() const { return save_every > 0; }
  bool resumes() const { return resume == "auto"; }
  bool saves_both() const { return save_tied == "both"; }
  bool FindsOne(const std::filesystem::path& run) const { return resumes() && !Checkpoints(run / "checkpoints").List().empty(); }
  std::optional<InitialLoadOptions> initial() const;
  bool asynchronous() const { return save_async == "on"; }
  Staging staging() const { return !enabled() ? Staging::kNone : asynchronous() ? Staging::kSnapshot : Staging::kChunks; }
};

// The checkpoints of one run, in <run>/checkpoints. Every rank makes the same calls.
class RunCheckpoints {
 public:
  // `identity`: what must not change for a resumed run to read on in the same data. Rank 0 `leads`: it alone tells.
  RunCheckpoints(const CheckpointFlags& flags, const std::filesystem::path& run, std::map<std::string, std::string> identity,
                 bool leads);

  // Before the first step: goes on from the newest whole checkpoint when asked to, or begins with what --initial-load names, which must
  // fit `canonical`, and checks that every rank can write and that the disk has room for as many as will be kept and for the weights.
  // Returns the step to go on after, 0 for a new run; tells on stderr. `texts` go into every checkpoint, `form` is that of the weights.
  int64_t Start(Trainer& trainer, const Graph& canonical, std::map<std::string, std::string> texts, const SavedForm& form);
  // A resolved config with a comment that says what the run began with.
  std::string WithOrigin(const std::string& config) const;
  // Of the step that the run goes on after, if any: its line in metrics.jsonl, unless it is there.
  void RecordResumed(RunFolder& folder) const;
  // The folder of the checkpoint of a step.
  std::filesystem::path Of(int64_t step) const { return folder_ / CheckpointName(step); }
  // Saves when due, unless the step was skipped as not finite, and records in `folder` (nullptr: not this rank's) what became whole
  // since. Throws what went wrong since.
  void AfterStep(const Trainer& trainer, int64_t step, RunFolder* folder);
  // Saves the last step, unless it is saved already or there are no checkpoints, and waits for it.
  void Finish(const Trainer& trainer, RunFolder* folder);

 private:
  int64_t Resume(Trainer& trainer);
  void LoadOther(Trainer& trainer, const Graph& canonical, const InitialLoadOptions& initial);
  void TellNoneWhole() const;
  void CheckPlace(const Trainer& trainer) const;
  void CheckRoom(const Trainer& trainer, const SavedForm& form) const;
  void Save(const Trainer& trainer, RunFolder* folder);
  void Wait(RunFolder* folder);
  void Tell(RunFolder* folder);

  const CheckpointFlags flags_;
  const std::filesystem::path folder_;
  const Checkpoints checkpoints_;
  const std::map<std::string, std::string> identity_;
  const bool leads_;
  std::optional<CheckpointWriter> writer_;
  std::optional<RunOrigin> origin_;
  int64_t saved_ = 0;
  bool told_skipping_ = false;
  std::chrono::steady_clock::time_point last_;  // when steps went on after the last save
  double since_s_ = 0, waited_s_ = 0;           // that they ran before the newest; that they stood still for it
};

// The same without a run: whether what --initial-load names fits, and what it is, in words; "" where it would not be read.
std::string InitialLoadNotice(const CheckpointFlags& flags, const std::filesystem::path& run, const Graph& canonical);

}  // namespace weir
