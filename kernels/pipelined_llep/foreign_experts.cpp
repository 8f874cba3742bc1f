#include "kernels/pipelined_llep/foreign_experts.h"

#include <algorithm>
#include <numeric>

namespace weir {
namespace {

// Parts stay aligned for vector loads.
int64_t Padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

int64_t SlotBytes(const std::vector<int64_t>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, int64_t bytes) { return sum + Padded(bytes); });
}

}  // namespace

ExpertBank::ExpertBank(const DispatchShape& shape, std::vector<int64_t> part_bytes,
                       WorkspaceLayout& layout)
    : shape_(shape),
      part_bytes_(std::move(part_bytes)),
      slots_(layout.Take<std::byte>(shape.foreign_slots * SlotBytes(part_bytes_))) {}

void ExpertBank::Start(Communicator* communicator, const LlepPlan& plan,
                       std::vector<const std::byte*> own) {
  communicator_ = communicator;
  plan_ = &plan;
  own_ = std::move(own);
  rank_ = communicator == nullptr ? 0 : communicator->rank();
  first_ = shape_.knobs.FirstExpert(rank_);
  end_ = shape_.knobs.FirstExpert(rank_ + 1);
  size_t slots = 0;
  for (const auto& borrowed : plan.foreign) slots = std::max(slots, borrowed.size());
  for (size_t slot = 0; slot < slots; ++slot) {
    for (size_t part = 0; part < part_bytes_.size(); ++part) {
      StartSlot(static_cast<int64_t>(slot), part);
    }
  }
}

// What all ranks borrow into one slot: each receives at most once, an owner sends once to a helper.
void ExpertBank::StartSlot(int64_t slot, size_t part) {
  const auto bytes = static_cast<size_t>(part_bytes_[part]);
  std::vector<Communicator::Outgoing> send;
  std::vector<Communicator::Incoming> receive;
  for (int64_t helper = 0; helper < shape_.knobs.ranks; ++helper) {
    const auto& borrowed = plan_->foreign[static_cast<size_t>(helper)];
    if (slot >= std::ssize(borrowed)) continue;
    const int64_t expert = borrowed[static_cast<size_t>(slot)];
    if (helper == rank_) receive.push_back({shape_.knobs.Owner(expert), {Slot(slot, part), bytes}});
    if (Owns(expert)) send.push_back({helper, {Part(expert, part), bytes}});
  }
  tickets_.push_back(communicator_->StartExchange(send, receive, {"BorrowExpert", "weights"}));
}

void ExpertBank::Wait() {
  for (auto& ticket : tickets_) communicator_->Wait(std::move(ticket));
  tickets_.clear();
}

std::byte* ExpertBank::Slot(int64_t slot, size_t part) const {
  std::byte* at = slots_ + slot * SlotBytes(part_bytes_);
  for (size_t p = 0; p < part; ++p) at += Padded(part_bytes_[p]);
  return at;
}

const std::byte* ExpertBank::Part(int64_t expert, size_t part) const {
  if (Owns(expert)) return own_[part] + (expert - first_) * part_bytes_[part];
  return Slot(plan_->Slot(rank_, expert), part);
}

}  // namespace weir
