#include "cli/run_checkpoints.h"

#include <iostream>

#include "cli/sizes.h"
#include "graph/error.h"

namespace weir {

namespace fs = std::filesystem;

po::options_description CheckpointFlags::Options() {
  po::options_description group("Checkpoints");
  group.add_options()
      ("save-every", po::value<int64_t>(&save_every)->default_value(save_every), "steps between checkpoints in RUN/checkpoints; 0 = none")
      ("keep", po::value<int64_t>(&keep)->default_value(keep), "newest checkpoints kept")
      ("keep-every", po::value<int64_t>(&keep_every)->default_value(keep_every), "steps whose multiples are kept for good; 0 = none")
      ("resume", po::value<std::string>(&resume)->default_value(resume),
       "none: RUN must be new; auto: go on from RUN's newest whole checkpoint, byte for byte as if never stopped");
  return group;
}

void CheckpointFlags::Check() const {
  if (save_every < 0) throw UsageError("--save-every must not be negative");
  if (keep < 1) throw UsageError("--keep must be positive");
  if (keep_every < 0) throw UsageError("--keep-every must not be negative");
  if (save_every == 0 && keep_every > 0) throw UsageError("--keep-every keeps checkpoints of --save-every: give both");
  if (resume != "none" && resume != "auto") throw UsageError("--resume must be none or auto, got " + resume);
}

RunCheckpoints::RunCheckpoints(const CheckpointFlags& flags, const fs::path& run, std::map<std::string, std::string> identity,
                               bool leads)
    : flags_(flags), folder_(run / "checkpoints"), checkpoints_(folder_), identity_(std::move(identity)), leads_(leads) {}

int64_t RunCheckpoints::Start(Trainer& trainer) const {
  if (flags_.resumes()) {
    std::vector<std::string> notices;
    const auto state = checkpoints_.LoadLatest(trainer.session(), identity_, notices);
    for (const std::string& notice : notices) {
      if (leads_) std::cerr << "checkpoint " << notice << "\n";
    }
    if (state) {
      trainer.Resume(*state);
      saved_ = state->step;
      if (leads_) checkpoints_.SetAside(state->step);
      if (leads_) std::cerr << "resumed after step " << state->step << ", " << state->tokens << " tokens\n";
    }
  }
  if (!flags_.enabled() || !leads_) return saved_;
  checkpoints_.RemoveUnfinished();
  std::error_code error;
  fs::create_directories(folder_, error);
  const auto space = fs::space(error ? folder_.parent_path() : folder_, error);
  WEIR_CHECK(!error, ErrorCode::kIoError, "cannot use '", folder_.string(), "' for checkpoints: ", error.message());
  // One more than is kept, while the next is written; what is there already is counted as taken.
  const int64_t one = Checkpoints::BytesOf(trainer.session());
  const int64_t missing = std::max<int64_t>(1, flags_.keep + 1 - static_cast<int64_t>(checkpoints_.List().size()));
  WEIR_CHECK(static_cast<int64_t>(space.available) >= missing * one, ErrorCode::kIoError, "'", folder_.string(), "' has ",
             FormatBytes(static_cast<int64_t>(space.available)), " free; ", missing, " checkpoints of ", FormatBytes(one),
             " are to be written; lower --keep or give another --out");
  return saved_;
}

void RunCheckpoints::AfterStep(const Trainer& trainer, int64_t step) const {
  // While steps are skipped the run may be lost: what is kept stays from before.
  if (flags_.enabled() && step % flags_.save_every == 0 && !trainer.Skipping()) Save(trainer);
}

void RunCheckpoints::Save(const Trainer& trainer) const {
  if (!flags_.enabled()) return;
  const CheckpointState state = trainer.State(identity_);
  if (state.step == saved_ || state.step == 0) return;
  checkpoints_.Save(trainer.session(), state);
  saved_ = state.step;
  if (leads_) checkpoints_.Rotate(flags_.keep, flags_.keep_every);
}

}  // namespace weir
