#include "optim/step_reader.h"

namespace weir {

StepReader::Batches StepReader::Take(int64_t first, std::optional<int64_t> next) {
  if (ahead_.valid() && at_ != first) ahead_.wait();
  Batches batches = ahead_.valid() && at_ == first ? ahead_.get() : read_(first);
  if (!next) return batches;
  at_ = *next;
  ahead_ = std::async(std::launch::async, read_, at_);
  return batches;
}

}  // namespace weir
