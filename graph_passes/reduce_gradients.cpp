#include "graph_passes/reduce_gradients.h"

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/vocabulary_share.h"
#include "graph_passes/accumulator.h"

namespace weir {
namespace {

Node* FindNorm(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->op() == "GradientNorm") return node.get();
  }
  throw Error(ErrorCode::kInternal, "the graph has no GradientNorm; sums over ranks belong to training graphs");
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

bool ReduceGradients::Run(Graph& graph, PassContext& context) {
  layout_.Validate();
  Node* norm = FindNorm(graph);
  Builder builder(graph, norm);
  builder.SetPhase(Phase::kNorm);
  const std::vector<Value*> gradients = norm->inputs;
  std::vector<int64_t> sharded;
  for (Value* const& gradient : gradients) {
    const Value* accumulator = AccumulatorOf(gradient);
    const ParameterInfo& info = *ParameterOf(graph, *accumulator).parameter;
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
    Value* squares = builder.Op("BlockSquares", {sum}, {{"group", std::string("vocabulary")}, {"elements", elements}, {"whole", int64_t{1}}});
    graph.SetInput(norm, static_cast<size_t>(&gradient - gradients.data()), squares);
    context.Matched(*squares->producer);
  }
  if (!sharded.empty()) {
    norm->attributes.Set("sharded", sharded);
    norm->attributes.Set("group", std::string("expert"));
    norm->attributes.Set("ranks", layout_.expert_parallel);
  }
  return context.matches > 0 || !sharded.empty();
}

}  // namespace weir
