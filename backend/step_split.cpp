#include "backend/step_split.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "backend/plan.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

const std::unordered_map<std::string, StepPart>& PartOfOp() {
  static const std::unordered_map<std::string, StepPart> parts = {
      {"Experts", StepPart::kDispatch},          {"ExpertsGradient", StepPart::kDispatch},
      {"PipelinedLlep", StepPart::kDispatch},    {"PipelinedLlepGradient", StepPart::kDispatch},
      {"CrossEntropy", StepPart::kHead},         {"CrossEntropyGradient", StepPart::kHead},
      {"RingDtp", StepPart::kHead},              {"SequenceToHeads", StepPart::kContext},
      {"HeadsToSequence", StepPart::kContext},   {"StashStart", StepPart::kBoundaries},
      {"StashWait", StepPart::kBoundaries},      {"FetchStart", StepPart::kBoundaries},
      {"FetchWait", StepPart::kBoundaries},      {"TreeReduceGradient", StepPart::kReduction}, {"TreeReduceJoin", StepPart::kReduction},
      {"ReduceRows", StepPart::kReduction}};
  return parts;
}

StepPart PartOfPhase(Phase phase) {
  if (phase == Phase::kForward) return StepPart::kForward;
  return phase == Phase::kBackward ? StepPart::kBackward : StepPart::kOptimizer;
}

// What made a value; casts between precisions are looked through.
const Node* MakerOf(const Value* value) {
  const Node* node = value == nullptr ? nullptr : value->producer;
  while (node != nullptr && node->op() == "Cast") node = node->in(0)->producer;
  return node;
}

// Where logits are kept, the products that make them and their gradients are the head's too.
std::unordered_set<const Node*> HeadProducts(const Plan& plan) {
  std::unordered_set<const Node*> head;
  for (const PlannedStep& step : plan.steps) {
    const Node& node = *step.node;
    if (node.op() == "CrossEntropy" || node.op() == "CrossEntropyGradient") {
      if (const Node* maker = MakerOf(node.in(0))) head.insert(maker);
    }
    const bool takes_gradient = std::ranges::any_of(node.inputs, [](const Value* input) {
      const Node* maker = MakerOf(input);
      return maker != nullptr && maker->op() == "CrossEntropyGradient";
    });
    if (takes_gradient) head.insert(&node);
  }
  return head;
}

thread_local ExpertLoadCollector* collector = nullptr;

}  // namespace

StepSplit& StepSplit::operator+=(const StepSplit& other) {
  std::ranges::transform(seconds_, other.seconds_, seconds_.begin(), std::plus());
  return *this;
}
float StepSplit::Sum() const { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0f); }

std::vector<StepPart> PartsOf(const Plan& plan) {
  const auto head = HeadProducts(plan);
  std::vector<StepPart> parts;
  for (const PlannedStep& step : plan.steps) {
    const auto named = PartOfOp().find(step.node->op());
    parts.push_back(named != PartOfOp().end()       ? named->second
                    : head.contains(step.node) ? StepPart::kHead
                                               : PartOfPhase(step.node->phase));
  }
  return parts;
}

void TellExpertLoad(ExpertLoad load) {
  if (collector == nullptr) return;
  auto& layers = collector->layers_;
  const size_t layer = collector->next_++;
  if (layer == layers.size()) {
    layers.push_back(std::move(load));
    return;
  }
  ExpertLoad& sum = layers[layer];
  std::ranges::transform(sum.routes, load.routes, sum.routes.begin(), std::plus());
  sum.chunks = std::max(sum.chunks, load.chunks);
  sum.helpers = std::max(sum.helpers, load.helpers);
}

ExpertLoadCollector::ExpertLoadCollector(std::vector<ExpertLoad>& layers) : layers_(layers), outer_(collector) { collector = this; }
ExpertLoadCollector::~ExpertLoadCollector() { collector = outer_; }

}  // namespace weir
