#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/kernel.h"

namespace weir {

// One span of the arena. Values that alias share a buffer.
struct PlannedBuffer {
  std::string name;  // of the value (or "<op> workspace")
  std::string term;  // ledger term: weights grads accumulators staging attention dispatch ... workspace fixed
  int64_t offset = 0, bytes = 0;
  int first_step = 0, last_step = 0;  // inclusive, in plan steps; persistent: 0..end
  bool persistent = false;
};

struct PlannedStep {
  const Node* node = nullptr;
  std::vector<int> inputs, outputs;  // buffer index, -1 = absent
  int workspace = -1;
};

// Pure data: where every byte lives and in which order the nodes run. Made without touching a device.
struct Plan {
  DeviceKind device = DeviceKind::kCpu;
  int64_t arena_bytes = 0;
  std::vector<PlannedBuffer> buffers;
  std::vector<PlannedStep> steps;
  std::unordered_map<const Value*, int> buffer_of;
  std::map<std::string, int64_t> ledger;  // peak bytes per term; sums to arena_bytes with "fragmentation"
};

// `graph` must be concrete and outlive the plan. Throws UnsupportedOp listing every missing kernel.
Plan MakePlan(const Graph& graph, DeviceKind device);
std::string PlanJson(const Plan& plan);

// Walks a plan over one arena and decides nothing. No allocation after construction.
class Executor {
 public:
  explicit Executor(const Plan& plan);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Memory of a value: stable for persistent values (inputs, constants, parameters, gradients,
  // optimizer state, graph outputs); for others valid right after the step that made it.
  Tensor TensorOf(const Value& value) const;
  // Copies constants' data into the arena (done by the constructor for kConstant values).
  void Run(Phase phase);                  // every step of that phase, in order
  void Run() { for (Phase p : {Phase::kBegin, Phase::kForward, Phase::kBackward, Phase::kNorm, Phase::kUpdate}) Run(p); }

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace weir
