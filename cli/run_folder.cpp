#include "cli/run_folder.h"

#include "cli/outputs.h"
#include "graph/error.h"
#include "optim/export.h"

namespace weir {

namespace fs = std::filesystem;

void PrepareFolder(const fs::path& folder, bool resumes) {
  std::error_code error;
  fs::create_directories(folder, error);
  WEIR_CHECK(!error && fs::is_directory(folder), ErrorCode::kIoError, "cannot create run folder '", folder.string(), "': ",
             error.message());
  if (resumes && fs::exists(folder / "config.ini")) return;
  WEIR_CHECK(fs::is_empty(folder), ErrorCode::kInvalidArgument, "run folder '", folder.string(),
             resumes ? "' holds something else than a run; give another --out"
                     : "' is not empty; give another --out, go on with --resume auto, or remove the old run");
}

RunFolder::RunFolder(fs::path folder, std::string title, int64_t resumed, Progress progress)
    : folder_(std::move(folder)),
      title_(std::move(title)),
      records_(ReadMetrics(folder_ / "metrics.jsonl", resumed)),
      metrics_(folder_ / "metrics.jsonl"),
      progress_(std::move(progress)) {}

void RunFolder::Record(const StepRecord& record) {
  records_.push_back(record);
  metrics_.Write(record);
  progress_.Show(record);
}

void RunFolder::Save(const TrainingSession& session) const {
  SaveWeights(session, Weights(), Steps());
  WriteText(folder_ / "loss.svg", LossPicture(records_, title_));
}

}  // namespace weir
