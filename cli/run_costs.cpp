#include "cli/run_costs.h"

#include <algorithm>
#include <array>

#include "cli/sizes.h"
#include "graph/error.h"
#include "optim/checkpoint.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kLoadEvery = 10;  // as train's --log-load-every
constexpr int64_t kMostAtOnce = 2;  // checkpoints

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Rank 0's, on all ranks.
fs::path SharedFolder(const TrainingSession& session, const fs::path& folder) {
  if (!folder.empty()) return folder;
  std::array<char, 1024> name = {};
  const std::string own = BenchFolder::OwnName().string();
  WEIR_CHECK(own.size() < name.size(), ErrorCode::kInvalidArgument, "the folder for temporary files has a long name, '", own, "'; give --out");
  std::ranges::copy(own, name.begin());
  Communicator* world = session.communicator();
  return fs::path(world == nullptr ? own : std::string(world->GatherValues(name, {"GatherValues", "bench folder"})[0].data()));
}

// Of one checkpoint, and of the next while it is written.
void CheckRoom(const TrainingSession& session, const fs::path& folder, int64_t checkpoints) {
  const int64_t one = Checkpoints::BytesOf(session), most = std::min<int64_t>(kMostAtOnce, checkpoints);
  std::error_code error;
  const auto space = fs::space(folder, error);
  WEIR_CHECK(!error, ErrorCode::kIoError, "cannot use '", folder.string(), "': ", error.message());
  const auto available = static_cast<int64_t>(space.available);
  WEIR_CHECK(available / most >= one, ErrorCode::kIoError, "'", folder.string(), "' has ", FormatBytes(available), " free; ", most, " checkpoints of ",
             FormatBytes(one), " are to be written; give another --out");
}

}  // namespace

RunCosts::RunCosts(const TrainingSession& session, const fs::path& folder, int64_t save_every, int64_t steps)
    : session_(session), folder_(SharedFolder(session, folder)), save_every_(save_every) {
  if (leads()) Prepare(steps / save_every);
  if (session.communicator() != nullptr) session.communicator()->Barrier({"Barrier", "bench folder"});  // the others write in it
  if (leads()) log_.emplace(folder_, "bench step", 0, /*events=*/true, Progress(steps, 1, nowhere_, /*terminal=*/false));
  writer_.emplace(session, folder_ / "checkpoints", std::map<std::string, std::string>(),
                  [checkpoints = Checkpoints(folder_ / "checkpoints")] { checkpoints.Rotate(1, 0); });
}

void RunCosts::Prepare(int64_t checkpoints) {
  made_.emplace(folder_);
  removed_.emplace(folder_, "weir bench step");
  try {
    CheckRoom(session_, folder_, checkpoints);
    fs::create_directories(folder_ / "checkpoints");
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    throw;
  }
}

RunCosts::~RunCosts() {
  writer_.reset();
  log_.reset();
  std::error_code ignored;
  if (leads()) fs::remove_all(folder_, ignored);
}

void RunCosts::Take(const std::optional<SavedCheckpoint>& saved) {
  if (!saved) return;
  writing_ = false;
  saved_.push_back(*saved);
}

void RunCosts::AfterStep(int64_t step, const StepResult& result, double seconds) {
  steps_.push_back({seconds, writing_});
  auto start = std::chrono::steady_clock::now();
  StepRecord record{.step = step, .loss = result.loss, .grad_norm = result.grad_norm, .tokens_per_s = static_cast<double>(result.valid_labels) / seconds,
                    .step_ms = seconds * 1e3, .tokens = step * result.valid_labels, .split = SplitsOfAllRanks(result.split, session_.communicator())};
  if (step % kLoadEvery == 1) record.loads = LoadsOfAllRanks(result.loads, session_.communicator());
  if (log_) log_->Record(record);
  log_s_ += SecondsSince(start);
  Take(writer_->Poll());
  if (step % save_every_ != 0) return;
  start = std::chrono::steady_clock::now();
  writer_->Wait();
  Take(writer_->Poll());
  late_s_ += SecondsSince(start);
  writer_->Start({.step = step, .updates = step, .losses = {}, .identity = {}});
  waited_s_ += SecondsSince(start);
  writing_ = true;
  ++started_;
}

void RunCosts::Finish() {
  writer_->Wait();
  Take(writer_->Poll());
  if (session_.communicator() != nullptr) session_.communicator()->Barrier({"Barrier", "bench checkpoints"});
}

RunCosts::Saves RunCosts::saves() const {
  Saves saves{.count = started_};
  if (started_ > 0) {
    saves.waited_s = waited_s_ / static_cast<double>(started_);
    saves.late_s = late_s_ / static_cast<double>(started_);
  }
  for (const SavedCheckpoint& one : saved_) {
    saves.bytes = one.bytes;
    saves.write_s += one.write_s / static_cast<double>(saved_.size());
  }
  return saves;
}

double RunCosts::MedianOf(bool beside) const {
  std::vector<double> seconds;
  for (size_t i = 1; i < steps_.size(); ++i) {
    if (steps_[i].beside == beside) seconds.push_back(steps_[i].seconds);
  }
  if (seconds.empty()) return 0;
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  return seconds[seconds.size() / 2];
}

}  // namespace weir
