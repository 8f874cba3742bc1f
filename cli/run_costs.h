#pragma once
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cli/bench_folder.h"
#include "cli/removed_on_signal.h"
#include "cli/run_folder.h"
#include "optim/checkpoint_writer.h"

namespace weir {

// What a run adds to its steps, measured on steps of a bench: asynchronous checkpoints every so many of them, and after each what
// `weir train --tensorboard` logs. Every rank makes the same calls; rank 0 leads. What was written is removed at the end, and
// when a signal ends the process.
class RunCosts {
 public:
  // `folder`: new or empty, the same on all ranks; "": one in the system's folder for temporary files.
  RunCosts(const TrainingSession& session, const std::filesystem::path& folder, int64_t save_every, int64_t steps);
  ~RunCosts();
  RunCosts(const RunCosts&) = delete;
  RunCosts& operator=(const RunCosts&) = delete;

  void AfterStep(int64_t step, const StepResult& result, double seconds);
  // Waits for the last checkpoint.
  void Finish();

  struct Saves {
    int64_t count = 0, bytes = 0;  // bytes: of one
    // Mean of each: that steps stood still, and of that for the one before, still being written; from its start until it was whole.
    double waited_s = 0, late_s = 0, write_s = 0;
  };
  Saves saves() const;
  double log_s() const { return log_s_ / static_cast<double>(std::max<size_t>(1, steps_.size())); }  // of a step
  // Of steps while a checkpoint was being written, and of the others, the first left out; 0: there was none.
  double beside_s() const { return MedianOf(true); }
  double alone_s() const { return MedianOf(false); }
  // Parts of the time of `save_every` steps of `step_s`, that steps stood still; and of a step, that logging took.
  double save_share(double step_s) const { return saves().waited_s / (step_s * static_cast<double>(save_every_)); }
  double log_share(double step_s) const { return log_s() / step_s; }

 private:
  struct Step {
    double seconds;
    bool beside;  // a checkpoint was being written when it began
  };
  void Prepare(int64_t checkpoints);  // rank 0's
  bool leads() const { return session_.rank() == 0; }
  double MedianOf(bool beside) const;
  void Take(const std::optional<SavedCheckpoint>& saved);

  const TrainingSession& session_;
  const std::filesystem::path folder_;
  const int64_t save_every_;
  std::optional<BenchFolder> made_;
  std::optional<RemovedOnSignal> removed_;
  std::ostream nowhere_{nullptr};  // progress is told to nobody
  std::optional<RunFolder> log_;
  std::optional<CheckpointWriter> writer_;
  std::vector<Step> steps_;
  std::vector<SavedCheckpoint> saved_;
  bool writing_ = false;
  int64_t started_ = 0;
  double waited_s_ = 0, late_s_ = 0, log_s_ = 0;
};

}  // namespace weir
