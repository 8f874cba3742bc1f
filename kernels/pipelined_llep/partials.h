#pragma once
#include <vector>

#include "backend/communicator.h"
#include "kernels/experts/weight_gradient.h"
#include "kernels/pipelined_llep/chunk_routes.h"

namespace weir {

// One expert's weight-gradient partials on their way from a helper to the owner: one buffer out,
// one in. Only the gradients that are wanted travel.
class PartialExchange {
 public:
  PartialExchange(const ExpertLayer& layer, const ExpertGradients& wanted, WorkspaceLayout& layout);

  const ExpertGradients& outgoing() const { return out_.gradients; }
  void StartSend(Communicator& communicator, int64_t owner);
  void StartReceive(Communicator& communicator, int64_t helper);
  void WaitSend(Communicator& communicator);
  // Adds what came to expert `index` of `total`.
  void WaitAndAdd(Communicator& communicator, const ExpertGradients& total, int64_t index);

 private:
  struct Partial {
    ExpertGradients gradients;
    std::span<float> floats;
  };
  Partial Take(WorkspaceLayout& layout) const;

  int64_t sizes_[4];
  Partial out_, in_;
  Communicator::Ticket sending_, receiving_;
};

}  // namespace weir
