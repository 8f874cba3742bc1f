#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "optim/trainer.h"

namespace weir {

// A new run's folder is new or empty; a resumed run's may be a run's.
void PrepareFolder(const std::filesystem::path& folder, bool resumes);

// What rank 0 alone writes of a run, and the progress that it reports.
class RunFolder {
 public:
  // `resumed`: the step that the run goes on after.
  RunFolder(std::filesystem::path folder, std::string title, int64_t resumed, Progress progress);

  void Record(const StepRecord& record);
  void Save(const TrainingSession& session) const;
  std::filesystem::path Weights() const { return folder_ / "weights.safetensors"; }
  int64_t Steps() const { return records_.empty() ? 0 : records_.back().step; }

 private:
  std::filesystem::path folder_;
  std::string title_;
  std::vector<StepRecord> records_;
  MetricsLog metrics_;
  Progress progress_;
};

}  // namespace weir
