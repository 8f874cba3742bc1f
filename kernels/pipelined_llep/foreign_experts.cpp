#include "kernels/pipelined_llep/foreign_experts.h"

#include <numeric>

namespace weir {

ExpertBank::ExpertBank(const DispatchShape& shape, bool gate_up_bias, bool down_bias,
                       WorkspaceLayout& layout)
    : shape_(shape), has_gate_up_bias_(gate_up_bias), has_down_bias_(down_bias) {
  const int64_t h = shape.layer.h, i = shape.layer.i;
  sizes_ = {2 * i * h, h * i};
  if (gate_up_bias) sizes_.push_back(2 * i);
  if (down_bias) sizes_.push_back(h);
  slots_ = layout.Take<float>(shape.foreign_slots *
                              std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0}));
}

std::vector<std::span<float>> ExpertBank::Parts(int64_t slot) const {
  std::vector<std::span<float>> parts;
  float* at = slots_ + slot * std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
  for (const int64_t size : sizes_) {
    parts.push_back({at, static_cast<size_t>(size)});
    at += size;
  }
  return parts;
}

void ExpertBank::Start(Communicator* communicator, const LlepPlan& plan, const ExpertsInputs& in) {
  communicator_ = communicator;
  plan_ = &plan;
  in_ = &in;
  rank_ = communicator == nullptr ? 0 : communicator->rank();
  first_ = shape_.knobs.FirstExpert(rank_);
  end_ = shape_.knobs.FirstExpert(rank_ + 1);
  for (int64_t helper = 0; helper < shape_.knobs.ranks; ++helper) {
    const auto& borrowed = plan.foreign[static_cast<size_t>(helper)];
    for (size_t slot = 0; slot < borrowed.size(); ++slot) {
      const int64_t expert = borrowed[slot], owner = shape_.knobs.Owner(expert);
      // Messages of a pair of ranks keep their order, and both walk the slots alike.
      if (helper == rank_) {
        for (const std::span<float> part : Parts(static_cast<int64_t>(slot))) {
          tickets_.push_back(communicator->StartReceive(owner, 0, std::as_writable_bytes(part),
                                                        {"BorrowExpert", "weights"}));
        }
      } else if (owner == rank_) {
        const ExpertWeights own = Find(expert);
        size_t size = 0;
        for (const float* part : {own.gate_up, own.down, own.gate_up_bias, own.down_bias}) {
          if (part == nullptr) continue;
          const std::span<const float> floats(part, static_cast<size_t>(sizes_[size++]));
          tickets_.push_back(communicator->StartSend(helper, 0, std::as_bytes(floats),
                                                     {"BorrowExpert", "weights"}));
        }
      }
    }
  }
}

void ExpertBank::Wait() {
  for (auto& ticket : tickets_) communicator_->Wait(std::move(ticket));
  tickets_.clear();
}

ExpertWeights ExpertBank::Find(int64_t expert) const {
  if (Owns(expert)) return in_->Expert(shape_.layer, expert - first_);
  const auto parts = Parts(plan_->Slot(rank_, expert));
  size_t next = 2;
  const float* gate_up_bias = has_gate_up_bias_ ? parts[next++].data() : nullptr;
  const float* down_bias = has_down_bias_ ? parts[next].data() : nullptr;
  return {parts[0].data(), parts[1].data(), gate_up_bias, down_bias};
}

}  // namespace weir
