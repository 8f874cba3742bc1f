#include "graph_passes/reduce_gradients.h"

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/vocabulary_share.h"

namespace weir {
namespace {

Node* FindNorm(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->op() == "GradientNorm") return node.get();
  }
  throw Error(ErrorCode::kInternal, "the graph has no GradientNorm; sums over ranks belong to training graphs");
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
      builder.SetStem(accumulator->name + ".sum");
      sum = builder.Op("TreeReduceGradient", {gradient}, {{"group", group}, {"ranks", ranks}});
      graph.ReplaceUses(gradient, sum);
      graph.SetInput(sum->producer, 0, gradient);
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
  if (!sharded.empty()) {
    norm->attributes.Set("sharded", sharded);
    norm->attributes.Set("group", std::string("expert"));
    norm->attributes.Set("ranks", layout_.expert_parallel);
  }
  return context.matches > 0 || !sharded.empty();
}

}  // namespace weir
