#include "kernels/pipelined_llep/partials.h"

#include <array>

namespace weir {
namespace {

constexpr int64_t kTag = 1;
constexpr CollectiveName kName{"ReturnPartial", "expert gradient"};

std::array<float*, 4> Pointers(const ExpertGradients& g) {
  return {g.gate_up, g.down, g.gate_up_bias, g.down_bias};
}

}  // namespace

PartialExchange::PartialExchange(const ExpertLayer& layer, const ExpertGradients& wanted,
                                 WorkspaceLayout& layout)
    : sizes_{wanted.gate_up ? 2 * layer.i * layer.h : 0, wanted.down ? layer.h * layer.i : 0,
             wanted.gate_up_bias ? 2 * layer.i : 0, wanted.down_bias ? layer.h : 0},
      out_(Take(layout)),
      in_(Take(layout)) {}

PartialExchange::Partial PartialExchange::Take(WorkspaceLayout& layout) const {
  const int64_t floats = sizes_[0] + sizes_[1] + sizes_[2] + sizes_[3];
  float* at = layout.Take<float>(floats);
  if (at == nullptr) return {};  // only counting
  const std::span<float> all(at, static_cast<size_t>(floats));
  std::array<float*, 4> parts = {};
  for (size_t p = 0; p < parts.size(); ++p) {
    if (sizes_[p] > 0) parts[p] = at;
    at += sizes_[p];
  }
  return {{parts[0], parts[1], parts[2], parts[3]}, all};
}

void PartialExchange::StartSend(Communicator& communicator, int64_t owner) {
  sending_ = communicator.StartSend(owner, kTag, std::as_bytes(out_.floats), kName);
}

void PartialExchange::StartReceive(Communicator& communicator, int64_t helper) {
  receiving_ = communicator.StartReceive(helper, kTag, std::as_writable_bytes(in_.floats), kName);
}

void PartialExchange::WaitSend(Communicator& communicator) {
  communicator.Wait(std::move(sending_));
}

void PartialExchange::WaitAndAdd(Communicator& communicator, const ExpertGradients& total,
                                 int64_t index, const Add& add) {
  communicator.Wait(std::move(receiving_));
  AddIncoming(total, index, add);
}

void PartialExchange::StartRound(Communicator& communicator, int64_t owner, int64_t helper) {
  std::vector<Communicator::Outgoing> send;
  std::vector<Communicator::Incoming> receive;
  if (owner >= 0) send.push_back({owner, std::as_bytes(out_.floats)});
  if (helper >= 0) receive.push_back({helper, std::as_writable_bytes(in_.floats)});
  round_ = communicator.StartExchange(send, receive, kName);
}

void PartialExchange::WaitRound(Communicator& communicator) {
  if (round_ != nullptr) communicator.Wait(std::move(round_));
}

void PartialExchange::AddIncoming(const ExpertGradients& total, int64_t index,
                                  const Add& add) const {
  const auto to = Pointers(total), from = Pointers(in_.gradients);
  for (size_t p = 0; p < to.size(); ++p) {
    if (to[p] != nullptr) add(to[p] + index * sizes_[p], from[p], sizes_[p]);
  }
}

}  // namespace weir
