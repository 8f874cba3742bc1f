#pragma once
#include <vector>

#include "backend/communicator.h"
#include "kernels/experts/cpu.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// This rank's experts and those it borrows: a borrowed expert's weights come once per launch and
// keep their slot over all chunks.
class ExpertBank {
 public:
  ExpertBank(const DispatchShape& shape, bool gate_up_bias, bool down_bias,
             WorkspaceLayout& layout);

  // Starts sending what other ranks borrow and receiving what this rank borrows.
  void Start(Communicator* communicator, const LlepPlan& plan, const ExpertsInputs& in);
  void Wait();

  bool Owns(int64_t expert) const { return expert >= first_ && expert < end_; }
  int64_t first() const { return first_; }
  ExpertWeights Find(int64_t expert) const;

 private:
  std::vector<std::span<float>> Parts(int64_t slot) const;

  const DispatchShape& shape_;
  std::vector<int64_t> sizes_;  // floats of gate_up, down, and the biases there are
  bool has_gate_up_bias_, has_down_bias_;
  float* slots_;
  Communicator* communicator_ = nullptr;
  const LlepPlan* plan_ = nullptr;
  const ExpertsInputs* in_ = nullptr;
  int64_t rank_ = 0, first_ = 0, end_ = 0;
  std::vector<Communicator::Ticket> tickets_;
};

}  // namespace weir
