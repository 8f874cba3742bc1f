#include "kernels/pipelined_llep/partials.h"

#include <array>

#include "backend/cpu/parallel.h"
#include "kernels/common/vector_loops.h"

namespace weir {
namespace {

constexpr int64_t kTag = 1;  // borrowed weights travel under 0
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
                                 int64_t index) {
  communicator.Wait(std::move(receiving_));
  const auto to = Pointers(total), from = Pointers(in_.gradients);
  for (size_t p = 0; p < to.size(); ++p) {
    if (to[p] == nullptr) continue;
    float* sum = to[p] + index * sizes_[p];
    ParallelFor(sizes_[p], 4096, [&](int64_t begin, int64_t end) {
      AddTo(from[p] + begin, end - begin, sum + begin);
    });
  }
}

}  // namespace weir
