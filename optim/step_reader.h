#pragma once
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "optim/training_session.h"

namespace weir {

// Reads the micro-batches of one step ahead of the step that is at work, on a thread of its own. What is read ahead is
// used for that step or dropped: where a run stands is what it has taken.
class StepReader {
 public:
  using Batches = std::vector<TrainingSession::MicroBatch>;
  // `read`: the batches of the step whose first sample has this index. Called by one thread at a time.
  explicit StepReader(std::function<Batches(int64_t)> read) : read_(std::move(read)) {}

  // The step at `first`; the one at `next` is begun. Throws what reading this step threw.
  Batches Take(int64_t first, std::optional<int64_t> next);

 private:
  const std::function<Batches(int64_t)> read_;
  int64_t at_ = -1;              // of the step that is read ahead
  std::future<Batches> ahead_;  // waits for its thread when destroyed
};

}  // namespace weir
