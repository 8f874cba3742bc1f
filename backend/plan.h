#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/device.h"
#include "backend/kernel.h"
#include "backend/memory.h"
#include "backend/step_split.h"
#include "backend/trace.h"

namespace weir {

// One span of the arena of its memory. Values that alias share a buffer.
struct PlannedBuffer {
  std::string name;  // of the value (or "<op> workspace")
  std::string term;  // ledger term: weights grads accumulators staging attention dispatch ... workspace fixed
  int64_t offset = 0, bytes = 0;
  int first_step = 0, last_step = 0;  // inclusive, in plan steps; persistent: 0..end
  bool persistent = false;
  bool is_output = false;  // of the graph
  Memory memory = Memory::kDevice;
};

struct PlannedStep {
  const Node* node = nullptr;
  std::vector<int> inputs, outputs;  // buffer index, -1 = absent
  int workspace = -1;
};

// Pure data: where every byte lives and in which order the nodes run. Made without touching a device.
struct Plan {
  DeviceKind device = DeviceKind::kCpu;
  int64_t arena_bytes = 0, host_arena_bytes = 0;
  std::vector<PlannedBuffer> buffers;
  std::vector<PlannedStep> steps;
  std::unordered_map<const Value*, int> buffer_of;
  // Bytes per term at the fullest step; with "fragmentation" they sum to arena_bytes.
  std::map<std::string, int64_t> ledger;
  // The same of host memory, summing to host_arena_bytes.
  std::map<std::string, int64_t> host_ledger;
};

// `graph` must be concrete and outlive the plan. Throws UnsupportedOp listing every missing kernel.
Plan MakePlan(const Graph& graph, DeviceKind device);
std::string PlanJson(const Plan& plan);
// The ledger and the largest buffers of the fullest step, as text for people.
std::string PlanTable(const Plan& plan);
// Buffers that no step reads and the caller cannot either: bytes planned for nothing.
std::vector<std::string> UnreadBuffers(const Plan& plan);

struct ExecutorOptions {
  // Debugging: fills activations with NaN (bytes 0xff) before they are first written and when they die,
  // so that a read too early or too late shows.
  bool poison = false;
  // Of all ranks, with its layout set; a node's attribute `group` picks the group its kernel gets. Borrowed.
  Communicator* communicator = nullptr;
  // Where the arena lives; null = a new device of the plan's kind.
  std::shared_ptr<Device> device = {};
  bool watch = false;  // keeps what the Take functions below hand over: take it, or it grows
};

// Walks a plan over one zeroed arena per memory and decides nothing. No allocation after construction. The plan and
// its graph must outlive it.
class Executor {
 public:
  // Allocates the arenas and copies the data of kConstant values into it; parameters are the caller's.
  explicit Executor(const Plan& plan, const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Memory of a value on its device: stable for persistent values (inputs, constants, parameters, gradients,
  // optimizer state, graph outputs); for others valid right after the step that made it.
  Tensor TensorOf(const Value& value) const;
  void Run(Phase phase);  // every step of that phase, in order
  void Run();             // all phases, in order

  // Copy all bytes of a value from and to host memory, after the work so far. Sizes must agree.
  void Write(const Value& value, const void* host, int64_t bytes);
  void Read(const Value& value, void* host, int64_t bytes) const;
  void Synchronize() const;

  // What runs between the two, launch by launch; marks cost a few microseconds each.
  void StartTrace();
  std::vector<TraceSpan> StopTrace();

  // Of the phases run since the last call: seconds by part, marked where one part follows another, once the device
  // has been waited for; and the load of each routed layer of the forward phases. Traced launches have no split.
  StepSplit TakeSplit();
  std::vector<ExpertLoad> TakeLoads();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
