#include "graph_passes/reduce_beside.h"

#include <algorithm>
#include <unordered_map>

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

constexpr int64_t kInFlight = int64_t{1} << 25;  // elements of all ranks in one round

}  // namespace

int64_t StagingElements(int64_t elements, int64_t ranks) {
  return 2 * ranks * std::clamp<int64_t>(DivCeil(elements, ranks), 1, std::max<int64_t>(kInFlight / ranks, 1));
}

Node* PlaceBeside(const Node& maker, Node* backward) { return maker.phase == Phase::kBackward ? std::next(maker.self)->get() : backward; }

Node* FirstOfNorm(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->phase == Phase::kNorm && node->op() != "TreeReduceGradient") return node.get();
  }
  throw Error(ErrorCode::kInternal, "the graph has no norm");
}

bool ReduceBeside::Run(Graph& graph, PassContext& context) {
  std::unordered_map<const Node*, std::vector<Node*>> sums_of;
  int64_t staging = 0;
  for (const auto& node : graph.nodes()) {
    if (node->op() != "TreeReduceGradient") continue;
    sums_of[node->in(0)->producer].push_back(node.get());
    staging = std::max(staging, StagingElements(NumElements(ToDims(node->in(0)->shape)), node->attributes.Int("ranks")));
  }
  if (sums_of.empty()) return false;
  const auto backward = std::ranges::find_if(graph.nodes(), [](const auto& node) { return node->phase == Phase::kBackward; });
  WEIR_CHECK(backward != graph.nodes().end(), ErrorCode::kInternal, "the graph has no backward pass to sum gradients beside");
  Node* const first = backward->get();
  std::vector<Node*> makers;
  for (const auto& node : graph.nodes()) {
    if (sums_of.contains(node.get())) makers.push_back(node.get());
  }
  Value* handed = nullptr;
  std::vector<std::pair<Node*, Value*>> begun;  // what was there, and its successor
  for (Node* maker : makers) {
    Builder builder(graph, PlaceBeside(*maker, first));
    builder.SetPhase(Phase::kBackward);
    for (Node* old : sums_of.at(maker)) {
      builder.SetSource(old->source);
      builder.SetStem(old->in(0)->name + ".begun");
      Attributes attributes = old->attributes;
      attributes.Set("staging", staging);
      std::vector<Value*> inputs = {old->in(0)};
      if (handed != nullptr) inputs.push_back(handed);
      const auto results = builder.Ops("TreeReduceGradient", inputs, 2, attributes);
      handed = results[1];
      begun.emplace_back(old, results[0]);
      context.Matched(*old);
    }
  }
  Builder builder(graph, FirstOfNorm(graph));
  builder.SetPhase(Phase::kNorm);
  for (const auto& [old, sum] : begun) {
    builder.SetSource(old->source);
    builder.SetStem(old->out()->name);
    const Attributes group = {{"group", old->attributes.String("group", "")}, {"ranks", old->attributes.Int("ranks")}};
    graph.ReplaceUses(old->out(), builder.Op("TreeReduceJoin", {sum, handed}, group));
    graph.RemoveNode(old);
  }
  return true;
}

}  // namespace weir
