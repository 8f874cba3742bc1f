#include "graph_passes/shard_context.h"

#include <map>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/token_wise.h"

namespace weir {

void ShardContext::CheckHeads(const Node& attention) const {
  const int64_t q = attention.in(0)->shape[2].Constant(), kv = attention.in(1)->shape[2].Constant();
  WEIR_CHECK(q % ranks_ == 0 && (kv % ranks_ == 0 || ranks_ % kv == 0), ErrorCode::kUnsupportedOp, "--context-parallel=", ranks_,
             ": Attention ", attention.source, " has ", q, " query heads and ", kv,
             " kv heads; ranks need equal shares of the query heads, and of the kv heads or one each; use a divisor of ", q,
             " that divides ", kv, " or is a multiple of it");
}

void ShardContext::Shard(Graph& graph, Node& attention) const {
  CheckHeads(attention);
  const int64_t heads = attention.in(0)->shape[2].Constant(), held = heads / ranks_;
  const Attributes exchange = {{"group", std::string("context")}, {"ranks", ranks_}};
  Builder builder(graph, &attention);
  builder.SetSource(attention.source);
  std::map<Value*, Value*> exchanged;  // k may be v
  for (size_t i = 0; i < 3; ++i) {
    Value* x = attention.in(i);
    builder.SetStem(x->name + ".heads");
    Value*& y = exchanged[x];
    if (y == nullptr) y = builder.Op("SequenceToHeads", {x}, exchange);
    graph.SetInput(&attention, i, y);
  }
  if (Value* sinks = attention.in(3)) {
    builder.SetStem(sinks->name + ".held");
    graph.SetInput(&attention, 3, builder.Op("Slice", {sinks, builder.Ints({member_ * held}), builder.Ints({(member_ + 1) * held}),
                                                       builder.Ints({0})}));
  }
  InferNode(attention);
  const auto next = std::next(attention.self);
  Value* y = attention.out();
  Value* whole = graph.AddValue(y->name);
  graph.ReplaceUses(y, whole);
  Attributes back = exchange;
  back.Set("heads", heads);
  Node* node = graph.AddNode(GetOp("HeadsToSequence", "ai.weir"), {y}, {whole}, std::move(back),
                             next == graph.nodes().end() ? nullptr : next->get());
  node->source = attention.source;
  InferNode(*node);
}

bool ShardContext::Run(Graph& graph, PassContext& context) {
  context.listed = true;
  const std::string mixed = MixedPositions(graph);
  WEIR_CHECK(mixed.empty(), ErrorCode::kUnsupportedOp, "--context-parallel=", ranks_,
             " gives each rank a part of every sequence, but these operators do not treat positions alike:", mixed,
             "\n  use --context-parallel=1");
  std::vector<Node*> layers;
  for (const auto& node : graph.nodes()) {
    if (Is(*node, "Attention", "ai.weir")) layers.push_back(node.get());
    if (node->op() == "RotaryTable") node->attributes.Set("part", member_);
  }
  WEIR_CHECK(!layers.empty(), ErrorCode::kUnsupportedOp, "--context-parallel=", ranks_,
             ": the graph has no Attention; see the misses of fuse_attention in passes.log");
  for (Node* attention : layers) {
    Shard(graph, *attention);
    context.Matched(*attention);
  }
  return true;
}

int64_t SequenceOfRank(const Layout& layout, int64_t sequence) {
  const int64_t ranks = layout.context_parallel;
  WEIR_CHECK(ranks > 0 && sequence % ranks == 0, ErrorCode::kInvalidArgument, "--sequence=", sequence, " cannot be cut into --context-parallel=",
             ranks, " equal parts; use a multiple");
  return sequence / ranks;
}

}  // namespace weir
