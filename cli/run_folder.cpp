#include "cli/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "cli/outputs.h"
#include "graph/error.h"
#include "optim/checkpoint.h"
#include "optim/export.h"

namespace weir {

namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostPoints = 20000;  // of the picture of the loss

// What a run that fails before the end of its first step may leave.
const std::set<std::string> kBeforeSteps = {"metrics.jsonl", "config.ini", "passes.log", "plan.json", "tensorboard", "trace.json", "trace.txt",
                                            "weights.safetensors", "loss.svg"};

// Files of WriteText have another name until they are whole.
constexpr const char* kUnfinished = ".writing";

bool IsBeforeSteps(std::string name) {
  if (name.ends_with(kUnfinished)) name.erase(name.rfind(kUnfinished));
  return kBeforeSteps.contains(name);
}

// metrics.jsonl is made before any of the others: without it they are not a run's.
bool FailedBeforeSteps(const fs::path& folder) {
  std::ifstream file(folder / "metrics.jsonl");
  if (!file) return false;
  for (std::string line; std::getline(file, line);) {
    if (line.find("\"eval_loss\"") == std::string::npos) return false;
  }
  return true;
}

bool HoldsNoCheckpoint(const fs::path& folder) {
  return std::ranges::all_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return name.starts_with(".writing-") || name.starts_with(".probe-");
  });
}

}  // namespace

bool PrepareFolder(const fs::path& folder, bool resumes) {
  std::error_code error;
  fs::create_directories(folder, error);
  WEIR_CHECK(!error, ErrorCode::kIoError, "cannot create run folder '", folder.string(), "': ", error.message());
  return CheckFolder(folder, resumes);
}

bool CheckFolder(const fs::path& folder, bool resumes) {
  WEIR_CHECK(fs::is_directory(folder), ErrorCode::kIoError, "cannot create run folder '", folder.string(), "': it is a file");
  if (resumes && (fs::exists(folder / "config.ini") || !Checkpoints(folder / "checkpoints").List().empty())) return true;
  const bool failed = FailedBeforeSteps(folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == ".lock" || (name == "checkpoints" && HoldsNoCheckpoint(entry.path())) || (failed && IsBeforeSteps(name))) continue;
    throw Error(ErrorCode::kInvalidArgument,
                resumes ? StrCat("run folder '", folder.string(), "' holds '", name, "' and neither config.ini nor a checkpoint (checkpoints/step-*) to go on from; give another --out")
                        : StrCat("run folder '", folder.string(), "' is not empty; give another --out, go on with --resume auto, or remove the old run"));
  }
  return false;
}

void ClearFolder(const fs::path& folder) {
  std::error_code error;  // what stays is written anew
  for (const std::string& name : kBeforeSteps) {
    fs::remove_all(folder / name, error);
    fs::remove(folder / (name + kUnfinished), error);
  }
}

RunLock::RunLock(const fs::path& folder) : fd_(open((folder / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  WEIR_CHECK(fd_ >= 0, ErrorCode::kIoError, "cannot write in '", folder.string(), "': ", std::strerror(errno));
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  close(fd_);
  // Some network file systems have no locks; a run there goes on without.
  WEIR_CHECK(error != EWOULDBLOCK, ErrorCode::kInvalidArgument, "another weir train writes in '", folder.string(),
             "'; wait for it, or give another --out");
  fd_ = -1;
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);
}

constexpr const char* kLeftOut = "(left out)";

std::vector<FlagChange> FlagChanges(const std::string& then, const std::string& now) {
  const auto read = [](const std::string& text) {
    std::map<std::string, std::string> values;  // repeated keys joined
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      const size_t equals = line.find(" = ");
      if (line.starts_with("#") || equals == std::string::npos) continue;
      std::string& value = values[line.substr(0, equals)];
      value += (value.empty() ? "" : ", ") + line.substr(equals + 3);
    }
    values.erase("resume");
    return values;
  };
  auto before = read(then), after = read(now);
  std::vector<FlagChange> changes;
  for (const auto& [key, value] : after) {
    const auto it = before.find(key);
    if (it == before.end() || it->second != value) changes.push_back({key, it == before.end() ? kLeftOut : it->second, value});
    before.erase(key);
  }
  for (const auto& [key, value] : before) changes.push_back({key, value, kLeftOut});
  return changes;
}

std::vector<std::string> ConfigChanges(const std::string& then, const std::string& now) {
  std::vector<std::string> changes;
  for (const FlagChange& change : FlagChanges(then, now)) changes.push_back(StrCat("--", change.flag, ": ", change.then, " then, ", change.now, " now"));
  return changes;
}

RunFolder::RunFolder(fs::path folder, std::string title, int64_t resumed, bool events, Progress progress)
    : folder_(std::move(folder)), title_(std::move(title)), progress_(progress) {
  std::ofstream(Log(), std::ios::app).close();  // before all else: FailedBeforeSteps
  // Written anew from the metrics, so that it holds each step once.
  if (events) events_.emplace(folder_ / "tensorboard", static_cast<double>(std::time(nullptr)));
  ContinueMetrics(Log(), resumed,
                  {.step = [&](const StepRecord& record) { Keep(record); }, .evaluation = [&](const EvalRecord& record) { Keep(record); }});
  log_.emplace(Log());
}

void RunFolder::Keep(const StepRecord& record) {
  step_ = record.step;
  if (events_) events_->Write(record.step, record.time, Scalars(record));
}

void RunFolder::Keep(const EvalRecord& record) {
  evaluated_ = record.step;
  if (events_) events_->Write(record.step, record.time, Scalars(record));
}

void RunFolder::Record(const StepRecord& record) {
  log_->Write(record);
  Keep(record);
  progress_.Show(record);
}

void RunFolder::Record(const EvalRecord& record) {
  log_->Write(record);
  Keep(record);
  progress_.Show(record);
}

void RunFolder::Record(const CheckpointRecord& record) {
  log_->Write(record);
  progress_.Show(record);
}

void RunFolder::Save(const TrainingSession& session, Communicator* world) const {
  SaveWeights(session, Weights(), Steps(), world);
  WriteText(folder_ / "loss.svg", LossPicture(ReadMetrics(Log(), step_, kMostPoints), title_));
}

}  // namespace weir
