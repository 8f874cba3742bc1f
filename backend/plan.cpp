#include "backend/plan.h"

#include <algorithm>

#include "backend/arena_layout.h"
#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

std::string Where(const Node& node) { return node.source.empty() ? node.op() : node.source; }

// CPU kernels compute in float32; some hold, convert or move bfloat16.
bool ComputesInBFloat16(const Node& node) {
  if (node.op() == "Cast" || node.op() == "AllGatherRows" || node.op() == "JoinBeside" || node.op().ends_with("AdamW")) return false;
  const auto is = [](const Value* value) { return value != nullptr && value->dtype == DType::kBFloat16; };
  return std::ranges::any_of(node.inputs, is) || std::ranges::any_of(node.outputs, is);
}

void CheckKernels(const Graph& graph, DeviceKind device) {
  std::map<std::string, std::pair<int, std::string>> missing;  // reason -> nodes, first source
  for (const auto& node : graph.nodes()) {
    const Kernel* kernel = FindKernel(device, *node->schema);
    std::string reason;
    if (kernel == nullptr) {
      reason = node->op() + ": no kernel";
    } else if (kernel->unsupported != nullptr) {
      reason = kernel->unsupported(*node);
      if (!reason.empty()) reason = node->op() + ": " + reason;
    }
    if (reason.empty() && device == DeviceKind::kCpu && ComputesInBFloat16(*node)) {
      reason = "bfloat16 compute runs with --device cuda only";
    }
    if (reason.empty()) continue;
    auto& [count, first] = missing.try_emplace(reason, 0, Where(*node)).first->second;
    ++count;
  }
  std::string list;
  for (const auto& [reason, nodes] : missing) {
    list += StrCat("\n  ", reason, " (", nodes.first, " nodes, first ", nodes.second, ")");
  }
  WEIR_CHECK(missing.empty(), ErrorCode::kUnsupportedOp, "the device cannot run these ops:", list);
}

class Planner {
 public:
  Planner(const Graph& graph, DeviceKind device) : graph_(graph) { plan_.device = device; }

  Plan Run() {
    OrderSteps();
    FindLastUses();
    for (const auto& value : graph_.values()) AddPersistent(*value);
    for (int s = 0; s < step_count(); ++s) PlanStep(s);
    for (PlannedBuffer& buffer : plan_.buffers) {
      if (buffer.persistent) buffer.first_step = 0, buffer.last_step = std::max(0, step_count() - 1);
    }
    plan_.arena_bytes = AssignOffsets(plan_.buffers);
    plan_.host_arena_bytes = AssignOffsets(plan_.buffers, Memory::kHost);
    plan_.ledger = MakeLedger(plan_);
    plan_.host_ledger = MakeLedger(plan_, Memory::kHost);
    return std::move(plan_);
  }

 private:
  int step_count() const { return static_cast<int>(plan_.steps.size()); }
  PlannedBuffer& buffer(int index) { return plan_.buffers[static_cast<size_t>(index)]; }

  void OrderSteps() {
    for (const auto& node : graph_.nodes()) plan_.steps.push_back({.node = node.get(), .inputs = {}, .outputs = {}});
    std::stable_sort(plan_.steps.begin(), plan_.steps.end(), [](const auto& a, const auto& b) {
      return a.node->phase < b.node->phase;
    });
    for (int s = 0; s < step_count(); ++s) {
      const Node* node = plan_.steps[static_cast<size_t>(s)].node;
      step_of_[node] = s;
      if (node->phase <= Phase::kBackward) loop_end_ = s;
    }
  }

  void FindLastUses() {
    for (const auto& value : graph_.values()) {
      if (value->producer == nullptr) continue;
      const int made = step_of_.at(value->producer);
      int last = made;
      for (const Use& use : value->uses) {
        const int step = step_of_.at(use.node);
        WEIR_CHECK(step > made, ErrorCode::kInternal, "'", value->name, "' is made by ",
                   Where(*value->producer), " in a later phase than its use by ", Where(*use.node));
        // Forward and backward run once per micro-batch: what kBegin made must survive all of them.
        const bool looped = value->producer->phase == Phase::kBegin &&
                            (use.node->phase == Phase::kForward || use.node->phase == Phase::kBackward);
        last = std::max(last, looped ? loop_end_ : step);
      }
      last_use_[value.get()] = last;
    }
  }

  int64_t CheckedBytes(const Value& value) const {
    WEIR_CHECK(value.has_shape && IsConcrete(value.shape) && value.dtype != DType::kUndefined,
               ErrorCode::kInvalidShape, "'", value.name, "' has type ", DTypeName(value.dtype),
               value.has_shape ? ToString(value.shape) : "(rank unknown)",
               "; a plan needs concrete shapes: bind batch and sequence first");
    return BytesOf(value.dtype, NumElements(ToDims(value.shape)));
  }

  int AddBuffer(std::string name, std::string term, int64_t bytes, int first, int last) {
    plan_.buffers.push_back({.name = std::move(name), .term = std::move(term), .bytes = bytes,
                             .first_step = first, .last_step = last});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }

  // Leaves and graph outputs keep their memory for good.
  void AddPersistent(const Value& value) {
    if (value.role == Role::kActivation) return;
    const bool is_output = graph_.IsOutput(&value);
    if (value.role == Role::kConstant && value.uses.empty() && !is_output) return;
    const int index = AddBuffer(value.name, TermOf(value), CheckedBytes(value), 0, 0);
    buffer(index).persistent = true;
    buffer(index).is_output = is_output;
    buffer(index).memory = MemoryOf(value);
    plan_.buffer_of[&value] = index;
    members_.resize(plan_.buffers.size());
    members_.back().push_back(&value);
  }

  void PlanStep(int s) {
    PlannedStep& step = plan_.steps[static_cast<size_t>(s)];
    const Node& node = *step.node;
    for (const Value* input : node.inputs) step.inputs.push_back(input ? plan_.buffer_of.at(input) : -1);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const Value* output = node.outputs[i];
      step.outputs.push_back(output == nullptr ? -1 : PlaceOutput(node, static_cast<int>(i), *output, s));
    }
    const Kernel* kernel = FindKernel(plan_.device, *node.schema);
    const int64_t bytes = kernel->workspace_bytes ? kernel->workspace_bytes(node) : 0;
    if (bytes > 0) {
      step.workspace = AddBuffer(node.op() + " workspace", WorkspaceTermOf(node), bytes, s, s);
      members_.resize(plan_.buffers.size());
    }
  }

  int PlaceOutput(const Node& node, int i, const Value& output, int s) {
    const int64_t bytes = CheckedBytes(output);
    const bool is_output = graph_.IsOutput(&output);
    const Value* source = AliasSource(node, i, output, s);
    if (source == nullptr && i == 0 && node.schema->view) source = ViewSource(node, bytes, is_output);
    if (source == nullptr && i == 0 && node.schema->elementwise && !is_output) {
      source = DyingInput(node, bytes, s);
    }
    int index;
    if (source != nullptr) {
      index = plan_.buffer_of.at(source);
    } else {
      index = AddBuffer(output.name, TermOf(output), bytes, s, s);
      buffer(index).memory = MemoryOf(output);
      members_.resize(plan_.buffers.size());
    }
    PlannedBuffer& shared = buffer(index);
    // A buffer counts as what stays in it longest.
    if (source != nullptr && !shared.persistent && last_use_.at(&output) > shared.last_step) shared.term = TermOf(output);
    shared.last_step = std::max(shared.last_step, last_use_.at(&output));
    shared.persistent |= is_output;
    shared.is_output |= is_output;
    members_[static_cast<size_t>(index)].push_back(&output);
    plan_.buffer_of[&output] = index;
    return index;
  }

  // The input whose buffer output `i` updates in place, or nullptr.
  const Value* AliasSource(const Node& node, int i, const Value& output, int s) const {
    for (const auto& [from, to] : node.schema->aliases) {
      const Value* source = from == i ? node.in(static_cast<size_t>(to)) : nullptr;
      if (source == nullptr) continue;
      WEIR_CHECK(CheckedBytes(*source) == CheckedBytes(output), ErrorCode::kInternal, Where(node), ": output ",
                 i, " updates '", source->name, "' in place but their sizes differ");
      WEIR_CHECK(MemoryOf(*source) == MemoryOf(output), ErrorCode::kInternal, Where(node), ": output ", i, " updates '",
                 source->name, "' in place but their memories differ");
      CheckNotReadLater(node, plan_.buffer_of.at(source), s);
      return source;
    }
    return nullptr;
  }

  // The input that a view shares, or nullptr when it needs a copy: a graph output must not change with a
  // leaf (an input fed anew, a parameter that steps).
  const Value* ViewSource(const Node& node, int64_t bytes, bool is_output) {
    const Value* input = node.in(0);
    const PlannedBuffer& shared = buffer(plan_.buffer_of.at(input));
    return shared.bytes != bytes || (is_output && shared.persistent) ? nullptr : input;
  }

  // An update in place destroys every older value of that buffer.
  void CheckNotReadLater(const Node& node, int index, int s) const {
    for (const Value* older : members_[static_cast<size_t>(index)]) {
      WEIR_CHECK(older->role != Role::kConstant && older->role != Role::kInput, ErrorCode::kInternal,
                 Where(node), " would overwrite '", older->name, "', which is not its to change");
      for (const Use& use : older->uses) {
        WEIR_CHECK(step_of_.at(use.node) <= s, ErrorCode::kInternal, Where(node), " overwrites '", older->name,
                   "' in place before ", Where(*use.node), " reads it");
      }
    }
  }

  // An activation of the same size that nothing reads after this step; elementwise kernels may write
  // their output over it.
  const Value* DyingInput(const Node& node, int64_t bytes, int s) {
    for (const Value* input : node.inputs) {
      if (input == nullptr || input->role != Role::kActivation) continue;
      const PlannedBuffer& candidate = buffer(plan_.buffer_of.at(input));
      if (!candidate.persistent && candidate.last_step == s && candidate.bytes == bytes &&
          CheckedBytes(*input) == bytes) {
        return input;
      }
    }
    return nullptr;
  }

  const Graph& graph_;
  Plan plan_;
  std::unordered_map<const Node*, int> step_of_;
  std::unordered_map<const Value*, int> last_use_;
  std::vector<std::vector<const Value*>> members_;  // values per buffer, oldest first
  int loop_end_ = 0;                                // last step that runs once per micro-batch
};

}  // namespace

Plan MakePlan(const Graph& graph, DeviceKind device) {
  CheckKernels(graph, device);
  return Planner(graph, device).Run();
}

}  // namespace weir
