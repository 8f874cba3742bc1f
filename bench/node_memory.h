#pragma once
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "graph/graph.h"

namespace weir {

// The buffers of one node on a device, freed with it, and launches of its kernel.
class NodeMemory {
 public:
  // Inputs hold bytes 01: a small positive number in every type.
  NodeMemory(Device& device, const Node& node);
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  // Normal numbers times `scale` (a block of them again and again); integers below `below`.
  void Draw(size_t input, float scale, int64_t below = 1);
  void Launch();
  // Seconds of one launch: the median of `batches` batches of `repeats` launches in a row, after
  // one.
  double Time(int repeats, int batches);

  const Tensor& input(size_t i) const { return inputs_[i]; }
  double bytes() const;  // of inputs and outputs
  int64_t workspace_bytes() const { return static_cast<int64_t>(workspace_.size()); }

 private:
  std::byte* Allocate(int64_t bytes);
  Tensor Allocate(const Value& value);
  const Tensor* AliasedInput(size_t output) const;

  Device& device_;
  const Node& node_;
  const Kernel& kernel_;
  std::vector<std::pair<std::byte*, int64_t>> owned_;
  std::vector<Tensor> inputs_, outputs_;
  std::span<std::byte> workspace_;
};

}  // namespace weir
