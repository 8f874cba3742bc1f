#include "cli/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "cli/outputs.h"
#include "graph/error.h"
#include "importer/safetensors.h"
#include "optim/checkpoint.h"
#include "optim/export.h"

namespace weir {

namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostPoints = 20000;  // of the picture of the loss

// What a run that fails before the end of its first step may leave.
const std::set<std::string> kBeforeSteps = {"metrics.jsonl", "config.ini", "passes.log", "plan.json", "tensorboard", "trace.json", "trace.txt",
                                            "weights.safetensors", "loss.svg"};

// Files of WriteText and of SaveWeights have another name until they are whole.
constexpr const char* kUnfinished = ".writing";
constexpr const char* kUnfinishedWeights = "weights.safetensors.tmp.";

bool IsUnfinished(const std::string& name) {
  return name.starts_with(kUnfinishedWeights) || (name.ends_with(kUnfinished) && kBeforeSteps.contains(name.substr(0, name.rfind(kUnfinished))));
}

// What a killed run left of them. Only while no other run writes there.
void RemoveUnfinished(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;  // what stays costs space, not the run
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (IsUnfinished(entry.path().filename().string())) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove(path, error);
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
    if (name == ".lock" || (name == "checkpoints" && HoldsNoCheckpoint(entry.path())) || (failed && (kBeforeSteps.contains(name) || IsUnfinished(name)))) continue;
    throw Error(ErrorCode::kInvalidArgument,
                resumes ? StrCat("run folder '", folder.string(), "' holds '", name, "' and neither config.ini nor a checkpoint (checkpoints/step-*) to go on from; give another --out")
                        : StrCat("run folder '", folder.string(), "' is not empty; give another --out, go on with --resume auto, or remove the old run"));
  }
  return false;
}

std::string UnwritableNotice(const fs::path& folder) {
  std::error_code error;
  fs::path there = fs::absolute(folder);
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (access(there.c_str(), W_OK) == 0) return "";
  return StrCat("notice: '", there.string(), "' cannot be written (", std::strerror(errno), "): the run itself would be refused; give another --out");
}

void ClearFolder(const fs::path& folder) {
  std::error_code error;  // what stays is written anew
  for (const std::string& name : kBeforeSteps) fs::remove_all(folder / name, error);
}

RunLock::RunLock(const fs::path& folder) : lock_(folder / ".lock") {
  WEIR_CHECK(lock_.state() != FileLock::State::kNoFile, ErrorCode::kIoError, "cannot write in '", folder.string(), "': ", std::strerror(lock_.error()));
  // Where there are no locks a run goes on without.
  WEIR_CHECK(lock_.state() != FileLock::State::kBusy, ErrorCode::kInvalidArgument, "another weir train writes in '", folder.string(),
             "'; wait for it, or give another --out");
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

void TellConfigChanges(const fs::path& file, const std::string& now) {
  std::ifstream in(file);
  if (!in) return;
  const std::string then((std::istreambuf_iterator<char>(in)), {});
  for (const std::string& change : ConfigChanges(then, now)) std::cerr << "changed " << change << "\n";
}

void KeepOldWeights(const fs::path& folder, const Restart& restart) {
  const fs::path weights = folder / "weights.safetensors";
  if (!fs::exists(weights)) return;
  const auto metadata = ReadSafetensors(weights).metadata;
  const auto step = metadata.find("step");
  const std::string after = step == metadata.end() ? "" : step->second;
  if (after == "0") return;  // as they were before training
  std::ifstream file(folder / "config.ini");
  const std::string then((std::istreambuf_iterator<char>(file)), {});
  const bool same = !after.empty() && FlagChanges(then, restart.config).empty();
  const bool ended_early = same && std::atoll(after.c_str()) < restart.steps;
  WEIR_CHECK(ended_early && restart.saves, ErrorCode::kInvalidArgument, "run folder '", folder.string(), "' holds ", weights.filename().string(),
             after.empty() ? "" : " after step " + after, " and no checkpoint to go on from, so a run would begin anew and overwrite them; give another --out, or move them away",
             ended_early ? " (checkpoints are written with --save-every)" : "");
  const fs::path kept = folder / ("weights-after-" + after + ".safetensors");
  fs::rename(weights, kept);
  std::cerr << "the weights after step " << after << " of the run that ended here are kept in '" << kept.string() << "'\n";
}

RunFolder::RunFolder(fs::path folder, std::string title, int64_t resumed, bool events, Progress progress)
    : folder_(std::move(folder)), title_(std::move(title)), progress_(progress) {
  RemoveUnfinished(folder_);
  std::ofstream(Log(), std::ios::app).close();  // before all else: FailedBeforeSteps
  // Written anew from the metrics, so that it holds each step once.
  if (events) events_.emplace(folder_ / "tensorboard", static_cast<double>(std::time(nullptr)));
  ContinueMetrics(Log(), resumed,
                  {.step = [&](const StepRecord& record) { Keep(record); },
                   .evaluation = [&](const EvalRecord& record) { Keep(record); },
                   .checkpoint = [&](int64_t step) { saved_ = std::max(saved_, step); }});
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

void RunFolder::RecordLate(const CheckpointRecord& record) {
  if (record.step > saved_) log_->Write(record);
}

void RunFolder::Save(const TrainingSession& session, Communicator* world, const SavedForm& form) const {
  SaveWeights(session, Weights(), Steps(), world, form);
  log_->CheckIsThere();
  WriteText(folder_ / "loss.svg", LossPicture(ReadMetrics(Log(), step_, kMostPoints), title_));
}

}  // namespace weir
