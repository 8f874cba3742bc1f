#include <algorithm>

#include "backend/arena_layout.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

bool FeedsLoss(const Value& value) {
  return std::any_of(value.uses.begin(), value.uses.end(), [](const Use& use) {
    return use.index == 0 && use.node->op().starts_with("CrossEntropy");
  });
}

// Leaves for the host and comes back.
bool IsStashed(const Value& value) {
  return std::any_of(value.uses.begin(), value.uses.end(), [](const Use& use) { return use.node->op() == "StashStart"; });
}

bool CrossesIntoBackward(const Value& value) {
  return std::any_of(value.uses.begin(), value.uses.end(),
                     [](const Use& use) { return use.node->phase == Phase::kBackward; });
}

// The working copy of a parameter in the type of compute, made once per step.
bool IsWorkingWeight(const Value& value) {
  const Node& node = *value.producer;
  return node.phase == Phase::kBegin && node.op() == "Cast" && node.in(0)->role == Role::kParameter;
}

// The whole accumulator of a matrix that is sharded: gone when its rows are summed.
bool IsReducedToRows(const Value& value) {
  return std::ranges::any_of(value.uses, [](const Use& use) { return use.index == 0 && use.node->op() == "ReduceRows"; });
}

// Copies to and from the host count as what they are copies of.
std::string ActivationTerm(const Value& value) {
  const std::string& op = value.producer->op();
  if (op.starts_with("Stash") || op.starts_with("Fetch")) {
    const Value& source = *value.producer->in(0);
    return source.producer != nullptr && ActivationTerm(source) == "attention" ? "attention" : "boundaries";
  }
  if (IsWorkingWeight(value)) return "weights";
  if (op == "AllGatherRows" && value.producer->attributes.Int("event", -1) >= 0) return "gathered";
  if (op == "JoinBeside") return value.producer->in(0)->producer->op() == "AllGatherRows" ? "gathered" : "grads";
  if (op == "Zeros" || IsReducedToRows(value)) return "grads";
  if (FeedsLoss(value) || op.starts_with("CrossEntropy")) return "strips";
  if (op.starts_with("Attention") || op.starts_with("Rotary") || op.ends_with("ToHeads") || op.ends_with("ToSequence")) return "attention";
  if (op == "AllGatherRows") return "weights";
  if (op == "PrefetchState" || op == "OffloadStreamAdamW") return "staging";  // the ring of buckets
  if (op == "TreeReduceGradient" || op == "ReduceRows") return "staging";
  if (op.starts_with("Experts") || op.starts_with("PipelinedLlep")) return "dispatch";
  if (IsStashed(value)) return "boundaries";
  // The residual stream kept for backward: sums that outlive the forward.
  if (op == "Add" && value.producer->phase == Phase::kForward && CrossesIntoBackward(value)) {
    return "boundaries";
  }
  return "activations";
}

}  // namespace

std::string TermOf(const Value& value) {
  switch (value.role) {
    case Role::kParameter: return "weights";
    case Role::kGradient: return "grads";
    case Role::kOptimizerState: return "optimizer";
    case Role::kConstant: return IsFloat(value.dtype) && value.shape.size() >= 2 ? "weights" : "fixed";
    case Role::kInput: return "fixed";
    case Role::kActivation: return ActivationTerm(value);
  }
  return "fixed";
}

std::string WorkspaceTermOf(const Node& node) {
  const std::string& op = node.op();
  if (op == "RingDtp") return "strips";  // the head's workspace is its strip of logits
  if (op == "OffloadStreamAdamW") return "staging";
  if (op.starts_with("Experts") || op.starts_with("PipelinedLlep")) return "dispatch";
  return op.starts_with("Attention") ? "attention" : "workspace";
}

std::span<const char* const> LedgerTerms() {
  static constexpr const char* kTerms[] = {"weights", "gathered", "grads",      "optimizer",   "staging",   "attention", "dispatch",
                                           "strips",  "boundaries", "activations", "workspace", "fixed",     "checkpoints", "fragmentation"};
  return kTerms;
}

int FullestStep(const Plan& plan, Memory memory) {
  std::vector<int64_t> change(std::max<size_t>(1, plan.steps.size()) + 1);  // of the live bytes, step by step
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.memory != memory) continue;
    change[static_cast<size_t>(buffer.first_step)] += Aligned(buffer.bytes);
    change[static_cast<size_t>(buffer.last_step) + 1] -= Aligned(buffer.bytes);
  }
  int fullest = 0;
  int64_t live = 0, most = -1;
  for (size_t step = 0; step + 1 < change.size(); ++step) {
    live += change[step];
    if (live > most) most = live, fullest = static_cast<int>(step);
  }
  return fullest;
}

std::map<std::string, int64_t> MakeLedger(const Plan& plan, Memory memory) {
  std::map<std::string, int64_t> ledger;
  const int step = FullestStep(plan, memory);
  int64_t sum = 0;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.memory != memory || buffer.first_step > step || step > buffer.last_step) continue;
    ledger[buffer.term] += Aligned(buffer.bytes);
    sum += Aligned(buffer.bytes);
  }
  ledger["fragmentation"] = (memory == Memory::kHost ? plan.host_arena_bytes : plan.arena_bytes) - sum;
  return ledger;
}

void ReserveHost(Plan& plan, const Value& value, const std::string& term) {
  plan.buffer_of[&value] = static_cast<int>(plan.buffers.size());
  const int last = std::max(0, static_cast<int>(plan.steps.size()) - 1);
  const int64_t bytes = BytesOf(value.dtype, NumElements(ToDims(value.shape)));
  plan.buffers.push_back({.name = value.name, .term = term, .offset = plan.host_arena_bytes, .bytes = bytes, .first_step = 0, .last_step = last,
                          .persistent = true, .is_output = false, .memory = Memory::kHost});
  plan.host_arena_bytes += Aligned(bytes);
  plan.host_ledger = MakeLedger(plan, Memory::kHost);
}

std::vector<std::string> UnreadBuffers(const Plan& plan) {
  std::vector<bool> read(plan.buffers.size(), false);
  for (size_t i = 0; i < read.size(); ++i) read[i] = plan.buffers[i].is_output;
  for (const PlannedStep& step : plan.steps) {
    for (int input : step.inputs) {
      if (input >= 0) read[static_cast<size_t>(input)] = true;
    }
    if (step.workspace >= 0) read[static_cast<size_t>(step.workspace)] = true;
  }
  std::vector<std::string> unread;
  for (size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) unread.push_back(plan.buffers[i].name);
  }
  return unread;
}

}  // namespace weir
