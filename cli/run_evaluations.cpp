#include "cli/run_evaluations.h"

#include <chrono>

namespace weir {

RunEvaluations::RunEvaluations(const DataFlags& flags, int64_t sequence, uint64_t seed, int64_t vocabulary)
    : every_(flags.eval_every), batches_(flags.eval_batches) {
  if (flags.evaluates()) held_out_ = flags.OpenHeldOut(sequence, seed, vocabulary);
}

bool RunEvaluations::IsDue(const Trainer& trainer, int64_t step) const {
  if (!held_out_ || step == evaluated_) return false;
  return step == 0 || trainer.Done() || (every_ > 0 && step % every_ == 0);
}

bool RunEvaluations::AfterStep(Trainer& trainer, int64_t step, const std::function<bool()>& stop, RunFolder* folder) {
  if (!IsDue(trainer, step)) return true;
  EvalProgress progress = trainer.Evaluation(*held_out_, batches_);
  const auto begin = std::chrono::steady_clock::now();
  const auto record = trainer.Evaluate(*held_out_, batches_, [&] {  // asked before each batch
    progress.elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (folder != nullptr) folder->Show(progress);
    ++progress.done;
    return stop();
  });
  if (!record) return false;
  evaluated_ = step;
  if (folder != nullptr) folder->Record(*record);
  return true;
}

}  // namespace weir
