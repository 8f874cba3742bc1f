#include "graph_passes/reduce_gradients.h"

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"

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
    const bool shard = info.shard && gradient->shape[0].Constant() != info.shard->total;
    if (shard) sharded.push_back(&gradient - gradients.data());
    const std::string group = info.shard && !shard ? "world" : info.shared_by;
    const int64_t ranks = layout_.GroupSize(group);
    if (ranks == 1) continue;
    builder.SetStem(accumulator->name + ".sum");
    builder.SetSource("gradient '" + accumulator->name + "'");
    Value* sum = builder.Op("TreeReduceGradient", {gradient}, {{"group", group}, {"ranks", ranks}});
    graph.ReplaceUses(gradient, sum);
    graph.SetInput(sum->producer, 0, gradient);
    context.Matched(*sum->producer);
  }
  if (!sharded.empty()) {
    norm->attributes.Set("sharded", sharded);
    norm->attributes.Set("group", std::string("expert"));
    norm->attributes.Set("ranks", layout_.expert_parallel);
  }
  return context.matches > 0 || !sharded.empty();
}

}  // namespace weir
