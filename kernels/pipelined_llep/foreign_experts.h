#pragma once
#include <vector>

#include "backend/communicator.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// This rank's experts and those it borrows: a borrowed expert's weights come once per launch and
// keep their slot over all chunks.
class ExpertBank {
 public:
  // An expert is one part of each of its tensors, `part_bytes` long.
  ExpertBank(const DispatchShape& shape, std::vector<int64_t> part_bytes, WorkspaceLayout& layout);

  // Starts sending what other ranks borrow and receiving what this rank borrows. `own`: each
  // tensor, this rank's experts stacked.
  void Start(Communicator* communicator, const LlepPlan& plan, std::vector<const std::byte*> own);
  void Wait();

  bool Owns(int64_t expert) const { return expert >= first_ && expert < end_; }
  int64_t first() const { return first_; }
  const std::byte* Part(int64_t expert, size_t part) const;

 private:
  void StartSlot(int64_t slot, size_t part);
  std::byte* Slot(int64_t slot, size_t part) const;

  const DispatchShape& shape_;
  std::vector<int64_t> part_bytes_;
  std::byte* slots_;
  Communicator* communicator_ = nullptr;
  const LlepPlan* plan_ = nullptr;
  std::vector<const std::byte*> own_;
  int64_t rank_ = 0, first_ = 0, end_ = 0;
  std::vector<Communicator::Ticket> tickets_;
};

}  // namespace weir
