#include "cli/run_checkpoints.h"

#include <sys/stat.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <utility>

#include "cli/same_inputs.h"
#include "cli/sizes.h"
#include "graph/error.h"
#include "importer/mapped_file.h"
#include "optim/export.h"

namespace weir {

namespace fs = std::filesystem;
namespace {

constexpr int64_t kSmallFiles = int64_t{256} << 10;  // of a run beside its weights: config, plan, picture, metrics

// Of what ranks on several machines must see alike: a weights file, or the index with every block's checksum.
RankInput InputOf(const RunOrigin& origin) {
  const fs::path file = fs::is_directory(origin.path) ? fs::path(origin.path) / kIndexFile : fs::path(origin.path);
  const auto bytes = MappedFile::Open(file);
  return {StrCat("--initial-load file '", file.string(), "'"), StrCat(bytes->bytes().size(), " bytes"), HashSample(bytes->bytes())};
}

double Seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

po::options_description CheckpointFlags::PlanOptions() {
  po::options_description group("Checkpoints of train, in host memory");
  group.add_options()
      ("save-every", po::value<int64_t>(&save_every)->default_value(save_every), "as in train: any number of steps above 0 counts the host memory that checkpoints take, term checkpoints; 0 = none")
      ("save-async", po::value<std::string>(&save_async)->default_value(save_async),
       "as in train: on counts the copy of what the rank writes, off 64 MiB at most");
  return group;
}

po::options_description CheckpointFlags::Options() {
  po::options_description group("Checkpoints");
  group.add_options()
      ("save-every", po::value<int64_t>(&save_every)->default_value(save_every), "steps between checkpoints in RUN/checkpoints; 0 = none")
      ("keep", po::value<int64_t>(&keep)->default_value(keep), "newest checkpoints kept")
      ("keep-every", po::value<int64_t>(&keep_every)->default_value(keep_every), "steps whose multiples are kept for good; 0 = none")
      ("save-async", po::value<std::string>(&save_async)->default_value(save_async),
       "on: steps go on while a checkpoint is written, from a copy of what a rank writes in host memory (12 bytes a parameter, over the ranks that hold it), "
       "where the machine has room; off: they wait for the disk, with 64 MiB")
      ("save-tied", po::value<std::string>(&save_tied)->default_value(save_tied),
       "weights.safetensors of a head that is the embedding: once, under one name, its header naming the other, or both, for loaders that tie nothing")
      ("resume", po::value<std::string>(&resume)->default_value(resume),
       "none: RUN must be new; auto: go on from RUN's newest whole checkpoint, byte for byte as if never stopped")
      ("initial-load", po::value<std::string>(&initial_load),
       "begin a new run with what another trained: its folder (newest checkpoint), a checkpoint's folder, or weights.safetensors (weights alone). Steps, schedule, "
       "data and metrics begin anew; sequence, batch, data and ranks may be others. Not read where --resume auto finds a checkpoint of RUN's own")
      ("initial-load-model-only", po::bool_switch(&initial_load_model_only), "of an --initial-load checkpoint take the weights; AdamW's moments and step count begin with 0");
  return group;
}

void CheckpointFlags::Check() const {
  if (save_every < 0) throw UsageError("--save-every must not be negative");
  if (keep < 1) throw UsageError("--keep must be positive");
  if (keep_every < 0) throw UsageError("--keep-every must not be negative");
  const CheckpointFlags unset;  // a config file of a run names every flag: values, not mentions, tell what was asked for
  if (!enabled() && keep_every > 0) throw UsageError("--keep-every keeps checkpoints of --save-every: give both");
  if (!enabled() && keep != unset.keep) throw UsageError("--keep keeps checkpoints of --save-every: give both");
  if (save_async != "on" && save_async != "off") throw UsageError("--save-async must be on or off, got " + save_async);
  if (!enabled() && save_async != unset.save_async) throw UsageError("--save-async says how checkpoints of --save-every are written: give both");
  if (save_tied != "once" && save_tied != "both") throw UsageError("--save-tied must be once or both, got " + save_tied);
  if (initial_load_model_only && initial_load.empty()) throw UsageError("--initial-load-model-only says what --initial-load takes: give both");
  if (resume != "none" && resume != "auto") throw UsageError("--resume must be none or auto, got " + resume);
}

std::optional<InitialLoadOptions> CheckpointFlags::initial() const {
  if (initial_load.empty()) return std::nullopt;
  return InitialLoadOptions{.path = initial_load, .model_only = initial_load_model_only};
}

RunCheckpoints::RunCheckpoints(const CheckpointFlags& flags, const fs::path& run, std::map<std::string, std::string> identity,
                               bool leads)
    : flags_(flags), folder_(run / "checkpoints"), checkpoints_(folder_), identity_(std::move(identity)), leads_(leads) {}

int64_t RunCheckpoints::Resume(Trainer& trainer) {
  std::vector<std::string> notices;
  const auto state = checkpoints_.LoadLatest(trainer.session(), identity_, notices);
  for (const std::string& notice : notices) {
    if (leads_) std::cerr << "checkpoint " << notice << "\n";
  }
  if (!state && leads_) TellNoneWhole();
  if (!state) return 0;
  trainer.Resume(*state);
  origin_ = state->origin;
  if (leads_) checkpoints_.SetAside(state->step);
  if (leads_) std::cerr << "resumed after step " << state->step << ", " << state->tokens << " tokens\n";
  if (leads_ && flags_.initial()) std::cerr << "--initial-load is not read: the run has begun\n";
  return state->step;
}

void RunCheckpoints::LoadOther(Trainer& trainer, const Graph& canonical, const InitialLoadOptions& initial) {
  std::vector<std::string> notices;
  const RunOrigin& origin = origin_.emplace(LoadInitial(canonical, initial, &trainer.session(), notices));
  if (Communicator* world = trainer.session().communicator()) CheckSameInputs(*world, {InputOf(origin)});
  trainer.ContinueUpdates(origin.updates);
  if (!leads_) return;
  for (const std::string& notice : notices) std::cerr << notice << "\n";
  std::cerr << "initial load: " << ToText(origin) << "\n";
}

std::string RunCheckpoints::WithOrigin(const std::string& config) const {
  return origin_ ? StrCat(config, "# initial load: ", ToText(*origin_), "\n") : config;
}

std::string InitialLoadNotice(const CheckpointFlags& flags, const fs::path& run, const Graph& canonical) {
  const auto initial = flags.initial();
  if (!initial) return "";
  if (flags.FindsOne(run)) return "--initial-load is not read: the run has begun\n";
  std::vector<std::string> notices;
  const RunOrigin origin = LoadInitial(canonical, *initial, nullptr, notices);
  std::string text;
  for (const std::string& notice : notices) text += notice + "\n";
  return StrCat(text, "initial load: ", ToText(origin), "\n");
}

// What is there instead of a checkpoint to go on from, if anything is.
void RunCheckpoints::TellNoneWhole() const {
  std::error_code error;
  std::string there;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".writing-")) there += StrCat("checkpoint passed over: '", entry.path().string(), "' was never finished\n");
    const size_t step = name.starts_with("set-aside-") ? name.find("step-") : std::string::npos;
    if (step != std::string::npos) there += StrCat("checkpoint passed over: '", entry.path().string(), "' was set aside; rename it to ", name.substr(step), " to go on from it\n");
  }
  const auto steps = fs::file_size(folder_.parent_path() / "metrics.jsonl", error);
  if (there.empty() && (error || steps == 0)) return;
  const bool has_weights = fs::exists(folder_.parent_path() / "weights.safetensors");  // then it may be refused instead
  std::cerr << there << "no whole checkpoint in '" << folder_.string() << (has_weights ? "'\n" : "': the run begins with its first step\n");
}

int64_t RunCheckpoints::Start(Trainer& trainer, const Graph& canonical, std::map<std::string, std::string> texts, const SavedForm& form) {
  if (flags_.resumes()) saved_ = Resume(trainer);
  if (const auto initial = flags_.initial(); initial && saved_ == 0) LoadOther(trainer, canonical, *initial);
  if (const auto config = texts.find("config.ini"); config != texts.end()) config->second = WithOrigin(config->second);
  if (flags_.enabled()) CheckPlace(trainer);
  if (flags_.enabled() && leads_ && saved_ > 0) checkpoints_.Rotate(flags_.keep, flags_.keep_every);  // a kill may have come between
  if (leads_) CheckRoom(trainer, form);
  if (!flags_.enabled()) return saved_;
  const TrainingSession& session = trainer.session();
  const int64_t whole = StagingBytes(Staging::kSnapshot, session.graph(), session.layout(), session.rank());
  if (leads_ && flags_.asynchronous() && std::ssize(session.staging()) < whole) {
    std::cerr << "host memory does not hold a copy of what a checkpoint needs, " << FormatBytes(whole) << " per rank: steps wait while one is written\n";
  }
  writer_.emplace(session, folder_, std::move(texts), [this] { checkpoints_.Rotate(flags_.keep, flags_.keep_every); });
  last_ = std::chrono::steady_clock::now();
  return saved_;
}

void RunCheckpoints::RecordResumed(RunFolder& folder) const {
  if (saved_ == 0) return;
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  CheckpointRecord record{.step = saved_, .waited_ms = kUnknown, .write_ms = kUnknown, .share = kUnknown, .time = kUnknown};
  for (const auto& file : ReadIndex(Of(saved_)).files) record.bytes += file.bytes;
  struct stat made = {};
  if (stat((Of(saved_) / kIndexFile).c_str(), &made) == 0) record.time = static_cast<double>(made.st_mtim.tv_sec) + 1e-9 * static_cast<double>(made.st_mtim.tv_nsec);
  folder.RecordLate(record);
}

// A file of each rank, that all others can see.
void RunCheckpoints::CheckPlace(const Trainer& trainer) const {
  std::error_code error;
  if (leads_) {
    checkpoints_.CheckNames();
    checkpoints_.RemoveUnfinished();
    fs::create_directories(folder_, error);
    WEIR_CHECK(!error, ErrorCode::kIoError, "cannot use '", folder_.string(), "' for checkpoints: ", error.message());
  }
  Communicator* world = trainer.session().communicator();
  const auto meet = [&] {
    if (world != nullptr) world->Barrier({"Barrier", "place of checkpoints"});
  };
  const auto probe = [&](int64_t rank) { return folder_ / StrCat(".probe-", rank); };
  const int64_t rank = trainer.session().rank(), ranks = trainer.session().layout().world;
  meet();
  WEIR_CHECK(fs::is_directory(folder_, error), ErrorCode::kIoError, "rank ", rank, " does not find '", folder_.string(),
             "', which rank 0 has made; each rank writes its part of a checkpoint: give an --out that all of them share");
  WriteDurably(probe(rank), "");
  meet();
  WEIR_CHECK(fs::exists(probe((rank + 1) % ranks), error), ErrorCode::kIoError, "rank ", rank, " does not see in '", folder_.string(),
             "' what rank ", (rank + 1) % ranks, " wrote there; each rank writes its part of a checkpoint: give an --out that all of them share");
  meet();
  fs::remove(probe(rank), error);
}

void RunCheckpoints::CheckRoom(const Trainer& trainer, const SavedForm& form) const {
  std::error_code error;
  const fs::path run = folder_.parent_path();
  const auto space = fs::space(run.empty() ? "." : run, error);
  WEIR_CHECK(!error, ErrorCode::kIoError, "cannot use '", run.string(), "': ", error.message());
  // One more than is kept, while the next is written; what is there already is counted as taken.
  const int64_t one = std::max<int64_t>(1, Checkpoints::BytesOf(trainer.session())), available = static_cast<int64_t>(space.available);
  const int64_t missing = flags_.enabled() ? std::max<int64_t>(1, flags_.keep + 1 - std::ssize(checkpoints_.List())) : 0;
  const int64_t last = WeightsBytes(trainer.session(), form) + kSmallFiles;
  WEIR_CHECK(available >= last && (available - last) / one >= missing, ErrorCode::kIoError, "'", run.string(), "' has ", FormatBytes(available), " free; ",
             missing > 0 ? StrCat(missing, " checkpoints of ", FormatBytes(one), " and ") : "", FormatBytes(last),
             " of weights and metrics are to be written; ", missing > 0 ? "lower --keep or " : "", "give another --out");
  if (!flags_.enabled() || flags_.keep_every == 0) return;
  const int64_t for_good = trainer.options().steps / flags_.keep_every - saved_ / flags_.keep_every;
  if ((available - last) / one >= missing + for_good) return;
  std::cerr << "warning: '" << folder_.string() << "' has " << FormatBytes(available) << " free, and " << for_good << " checkpoints of " << FormatBytes(one)
            << " are to be kept for good beside " << flags_.keep << " of the newest: the disk will be full before the last step\n";
}

void RunCheckpoints::AfterStep(const Trainer& trainer, int64_t step, RunFolder* folder) {
  if (!writer_) return;
  Tell(folder);
  const bool due = step % flags_.save_every == 0;
  if (!trainer.Skipping()) {
    told_skipping_ = false;
    if (due) Save(trainer, folder);
  } else if (due && folder != nullptr && !std::exchange(told_skipping_, true)) {
    // The run may be lost: what is kept stays from before.
    folder->Tell(StrCat("step ", step, ": no checkpoint while steps are skipped as not finite; ",
                        saved_ > 0 ? StrCat("that of step ", saved_, " stays the newest") : "there is none yet"));
  }
}

void RunCheckpoints::Finish(const Trainer& trainer, RunFolder* folder) {
  if (!writer_) return;
  Save(trainer, folder);
  Wait(folder);
}

void RunCheckpoints::Save(const Trainer& trainer, RunFolder* folder) {
  CheckpointState state = trainer.State(identity_);
  state.origin = origin_;
  if (state.step == saved_ || state.step == 0) return;
  const auto begin = std::chrono::steady_clock::now();
  Wait(folder);
  since_s_ = Seconds(begin - last_);
  writer_->Start(state);
  saved_ = state.step;
  if (!flags_.asynchronous()) writer_->Wait();
  last_ = std::chrono::steady_clock::now();
  waited_s_ = Seconds(last_ - begin);
}

void RunCheckpoints::Wait(RunFolder* folder) {
  writer_->Wait();
  Tell(folder);
}

void RunCheckpoints::Tell(RunFolder* folder) {
  const auto saved = writer_->Poll();
  if (!saved || folder == nullptr) return;
  const double time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  folder->Record(CheckpointRecord{.step = saved->step, .bytes = saved->bytes, .waited_ms = 1e3 * waited_s_, .write_ms = 1e3 * saved->write_s,
                                  .share = waited_s_ / std::max(since_s_ + waited_s_, 1e-9), .time = time});
}

}  // namespace weir
