#pragma once
#include <functional>
#include <optional>

#include "cli/data_flags.h"
#include "cli/run_folder.h"
#include "optim/trainer.h"

namespace weir {

// When a run evaluates: before the first step, every --eval-every, after the last; once each, whatever restarts.
class RunEvaluations {
 public:
  RunEvaluations(const DataFlags& flags, int64_t sequence, uint64_t seed, int64_t vocabulary);
  bool weighted() const { return held_out_ && held_out_->weighted(); }
  const std::optional<DataLoader>& held_out() const { return held_out_; }
  // Of a resumed run: the last step that was evaluated, agreed by all ranks; -1 = none.
  void Start(int64_t evaluated) { evaluated_ = evaluated; }

  // False when `stop` came before its end: it is not done then. Rank 0 alone has a folder.
  bool AfterStep(Trainer& trainer, int64_t step, const std::function<bool()>& stop, RunFolder* folder);

 private:
  bool IsDue(const Trainer& trainer, int64_t step) const;

  int64_t every_, batches_, evaluated_ = -1;
  std::optional<DataLoader> held_out_;  // absent: the run does not evaluate
};

}  // namespace weir
