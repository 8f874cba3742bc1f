#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/file_lock.h"
#include "optim/event_file.h"
#include "optim/export.h"
#include "optim/trainer.h"

namespace weir {

// Makes the folder. A new run's is new, empty, or left by one that failed before the end of its first step; a resumed run's may be
// a run's: true then. Throws InvalidArgument for any other.
bool PrepareFolder(const std::filesystem::path& folder, bool resumes);
// The same of a folder that exists; only looks.
bool CheckFolder(const std::filesystem::path& folder, bool resumes);
// "" when a run could make or write it, else why not, for a dry run to say.
std::string UnwritableNotice(const std::filesystem::path& folder);
// Removes what a failed start has left in such a folder. Only while no other run writes there.
void ClearFolder(const std::filesystem::path& folder);

// For a run that would go on in `folder` and finds no checkpoint: trained weights that lie there are not to be overwritten. Those
// of the same flags, ended early, whose checkpoints (`saves`) were yet to come, are renamed weights-after-STEP.safetensors, which
// is said; any others throw InvalidArgument.
struct Restart {
  std::string config;  // resolved
  int64_t steps = 0;
  bool saves = false;
};
void KeepOldWeights(const std::filesystem::path& folder, const Restart& restart);

// Held while a run writes its folder. Throws InvalidArgument when another process holds it.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& folder);

 private:
  FileLock lock_;
};

// The flags whose values differ between two resolved configs, "--key: then, now" each; --resume aside.
struct FlagChange {
  std::string flag, then, now;  // "(left out)" where one config lacks it
};
std::vector<FlagChange> FlagChanges(const std::string& then, const std::string& now);
// "--steps: 3 then, 4 now"
std::vector<std::string> ConfigChanges(const std::string& then, const std::string& now);
// A resumed run may go on with other flags than it began with, those of its data and order aside; it says with which.
void TellConfigChanges(const std::filesystem::path& file, const std::string& now);

// What rank 0 alone writes of a run, and the progress that it reports. Of what it wrote it keeps nothing: runs are long.
class RunFolder {
 public:
  // `resumed`: the step that the run goes on after. `events`: TensorBoard event files are written too.
  RunFolder(std::filesystem::path folder, std::string title, int64_t resumed, bool events, Progress progress);

  void Record(const StepRecord& record);
  void Record(const EvalRecord& record);
  void Record(const CheckpointRecord& record);
  // Of the checkpoint that a run goes on from: its line, where a kill came before it could be written.
  void RecordLate(const CheckpointRecord& record);
  void Show(const EvalProgress& progress) { progress_.Show(progress); }
  void Tell(const std::string& text) { progress_.Tell(text); }
  void Save(const TrainingSession& session, Communicator* world, const SavedForm& form) const;
  std::filesystem::path Weights() const { return folder_ / "weights.safetensors"; }
  int64_t Steps() const { return step_; }
  int64_t Evaluated() const { return evaluated_; }  // the last step that was; -1 = none

 private:
  std::filesystem::path Log() const { return folder_ / "metrics.jsonl"; }
  // As the last one, and in the event file.
  void Keep(const StepRecord& record);
  void Keep(const EvalRecord& record);

  std::filesystem::path folder_;
  std::string title_;
  int64_t step_ = 0, evaluated_ = -1, saved_ = 0;
  std::optional<EventFile> events_;
  std::optional<MetricsLog> log_;
  Progress progress_;
};

}  // namespace weir
