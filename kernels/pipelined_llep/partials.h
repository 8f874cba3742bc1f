#pragma once
#include <functional>
#include <vector>

#include "backend/communicator.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/experts/weight_gradient.h"

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
  // Calls add(sum, partial, floats) for each gradient that came, expert `index` of `total`.
  using Add = std::function<void(float*, const float*, int64_t)>;
  void WaitAndAdd(Communicator& communicator, const ExpertGradients& total, int64_t index,
                  const Add& add);

  // The same as one exchange of all ranks; a peer of -1 is none. It starts behind the work that
  // made `outgoing`, and is waited for before the next.
  void StartRound(Communicator& communicator, int64_t owner, int64_t helper);
  void WaitRound(Communicator& communicator);
  void AddIncoming(const ExpertGradients& total, int64_t index, const Add& add) const;
  std::span<float> outgoing_floats() const { return out_.floats; }

 private:
  struct Partial {
    ExpertGradients gradients;
    std::span<float> floats;
  };
  Partial Take(WorkspaceLayout& layout) const;

  int64_t sizes_[4];
  Partial out_, in_;
  Communicator::Ticket sending_, receiving_, round_;
};

}  // namespace weir
