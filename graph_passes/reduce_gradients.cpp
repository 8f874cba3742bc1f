#include "graph_passes/reduce_gradients.h"

#include <algorithm>
#include <unordered_map>

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/vocabulary_share.h"

namespace weir {
namespace {

constexpr int64_t kInFlight = int64_t{1} << 25;  // elements of all ranks in one round

Node* FindNorm(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->op() == "GradientNorm") return node.get();
  }
  throw Error(ErrorCode::kInternal, "the graph has no GradientNorm; sums over ranks belong to training graphs");
}

// Nodes that read sums stand behind it.
Node* FirstOfNorm(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->phase == Phase::kNorm && node->op() != "TreeReduceGradient") return node.get();
  }
  throw Error(ErrorCode::kInternal, "the graph has no norm");
}

// The accumulator whose buffer `value` updates in place.
const Value* AccumulatorOf(const Value* value) {
  while (value->producer != nullptr) {
    const Value* source = nullptr;
    for (const auto& [output, input] : value->producer->schema->aliases) {
      if (output == value->producer_index) source = value->producer->in(static_cast<size_t>(input));
    }
    WEIR_CHECK(source != nullptr, ErrorCode::kInternal, "'", value->name, "' is no version of an accumulator");
    value = source;
  }
  return value;
}

const ParameterInfo& ParameterOf(const Graph& graph, const Value& accumulator) {
  const std::string name = accumulator.name.substr(0, accumulator.name.size() - std::string_view(".grad").size());
  const Value* parameter = graph.FindValue(name);
  WEIR_CHECK(parameter != nullptr && parameter->parameter != nullptr, ErrorCode::kInternal, "accumulator '",
             accumulator.name, "' belongs to no parameter");
  return *parameter->parameter;
}

// Elements of each rank's shard of a head, in rank order; shards are runs of `share` columns.
std::vector<int64_t> ShardElements(const Value& shard, const ParameterInfo& info, int64_t share, int64_t ranks) {
  std::vector<int64_t> elements;
  for (int64_t member = 0; member < ranks; ++member) {
    elements.push_back(VocabularyShare(info.shard->total, share, ranks, member).size() * shard.shape[1].Constant());
  }
  return elements;
}

}  // namespace

Value* ReduceGradients::Sum(Graph& graph, Node* norm, Value* gradient, const std::string& group) {
  const std::string& name = AccumulatorOf(gradient)->name;
  Builder builder(graph, norm);
  builder.SetPhase(Phase::kNorm);
  builder.SetSource("gradient '" + name + "'");
  builder.SetStem(name + ".sum");
  Value* sum = builder.Op("TreeReduceGradient", {gradient}, {{"group", group}, {"ranks", layout_.GroupSize(group)}});
  graph.ReplaceUses(gradient, sum);
  graph.SetInput(sum->producer, 0, gradient);
  return sum;
}

// Moves the sums to where their accumulators are final, in the order of that, and hands one staging from each to the next: two rounds
// of the largest.
void ReduceGradients::BeginBeside(Graph& graph, Node* norm) {
  Node* backward = nullptr;  // the first
  std::unordered_map<const Node*, std::vector<Node*>> sums_of;
  int64_t staging = 0;
  for (const auto& node : graph.nodes()) {
    if (backward == nullptr && node->phase == Phase::kBackward) backward = node.get();
    if (node->op() != "TreeReduceGradient") continue;
    sums_of[node->in(0)->producer].push_back(node.get());
    const int64_t ranks = node->attributes.Int("ranks"), slice = DivCeil(NumElements(ToDims(node->in(0)->shape)), ranks);
    staging = std::max(staging, 2 * ranks * std::clamp<int64_t>(slice, 1, std::max<int64_t>(kInFlight / ranks, 1)));
  }
  WEIR_CHECK(backward != nullptr, ErrorCode::kInternal, "the graph has no backward pass to sum gradients beside");
  std::vector<Node*> makers;
  for (const auto& node : graph.nodes()) {
    if (sums_of.contains(node.get())) makers.push_back(node.get());
  }
  Value* handed = nullptr;
  std::vector<std::pair<Node*, Value*>> begun;  // what was there, and its successor
  for (Node* maker : makers) {
    Builder builder(graph, maker->phase == Phase::kBackward ? std::next(maker->self)->get() : backward);
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
    }
  }
  Builder builder(graph, norm);
  builder.SetPhase(Phase::kNorm);
  for (const auto& [old, sum] : begun) {
    builder.SetSource(old->source);
    builder.SetStem(old->out()->name);
    const Attributes group = {{"group", old->attributes.String("group", "")}, {"ranks", old->attributes.Int("ranks")}};
    graph.ReplaceUses(old->out(), builder.Op("TreeReduceJoin", {sum, handed}, group));
    graph.RemoveNode(old);
  }
}

bool ReduceGradients::Run(Graph& graph, PassContext& context) {
  layout_.Validate();
  Node* norm = FindNorm(graph);
  Builder builder(graph, norm);
  builder.SetPhase(Phase::kNorm);
  const std::vector<Value*> gradients = norm->inputs;
  std::vector<int64_t> sharded;
  for (Value* const& gradient : gradients) {
    const Value* accumulator = AccumulatorOf(gradient);
    const ParameterInfo& info = ParameterOf(graph, *accumulator);
    // An accumulator of the whole collects what every rank has for every shard: its sum needs no more.
    const bool head = info.shared_by == "vocabulary_replica";
    const bool shard = info.shard && (!head || gradient->producer->attributes.Int("shard_gradient", 0) != 0);
    if (shard && !head) sharded.push_back(&gradient - gradients.data());
    const std::string group = info.shard && !shard ? "world" : info.shared_by;
    const int64_t ranks = layout_.GroupSize(group);
    builder.SetSource("gradient '" + accumulator->name + "'");
    Value* sum = gradient;
    if (ranks > 1) {
      sum = Sum(graph, norm, gradient, group);
      context.Matched(*sum->producer);
    }
    if (!shard || !head) continue;
    builder.SetStem(accumulator->name + ".squares");
    const int64_t share = gradient->producer->attributes.Int("share_columns", vocab_leaf_);
    const auto elements = ShardElements(*sum, info, share, layout_.vocabulary_parallel);
    Value* squares = builder.Op("BlockSquares", {sum}, {{"group", std::string("vocabulary")}, {"elements", elements}});
    graph.SetInput(norm, static_cast<size_t>(&gradient - gradients.data()), squares);
    context.Matched(*squares->producer);
  }
  if (beside_ && context.matches > 0) BeginBeside(graph, FirstOfNorm(graph));
  if (!sharded.empty()) {
    norm->attributes.Set("sharded", sharded);
    norm->attributes.Set("group", std::string("expert"));
    norm->attributes.Set("ranks", layout_.expert_parallel);
  }
  return context.matches > 0 || !sharded.empty();
}

}  // namespace weir
