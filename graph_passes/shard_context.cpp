#include "graph_passes/shard_context.h"

#include <map>
#include <utility>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/token_wise.h"

namespace weir {

namespace {

// Of `ranks` ranks those that share the same heads: as few as leave equal shares of the query heads to all, and of the
// kv heads, or one each.
int64_t RanksPerHeads(const Node& attention, int64_t ranks) {
  const int64_t q = attention.in(0)->shape[2].Constant(), kv = attention.in(1)->shape[2].Constant();
  for (int64_t sharing = 1; sharing < ranks; ++sharing) {
    const int64_t groups = ranks / sharing;
    if (ranks % sharing == 0 && q % groups == 0 && (kv % groups == 0 || groups % kv == 0)) return sharing;
  }
  return ranks;
}

}  // namespace

void ShardContext::Shard(Graph& graph, Node& attention) const {
  const int64_t sharing = RanksPerHeads(attention, ranks_), group = member_ / sharing;
  const int64_t heads = attention.in(0)->shape[2].Constant(), held = heads * sharing / ranks_;
  Attributes exchange = {{"group", std::string("context")}, {"ranks", ranks_}};
  if (sharing > 1) exchange.Set("sharing", sharing);
  Attributes of_rows = exchange;  // of queries, and of what is made of them
  if (sharing > 1) of_rows.Set("deal", int64_t{1});
  Builder builder(graph, &attention);
  builder.SetSource(attention.source);
  std::map<std::pair<Value*, bool>, Value*> exchanged;  // k may be v
  for (size_t i = 0; i < 3; ++i) {
    Value* x = attention.in(i);
    const bool rows = i == 0 && sharing > 1;
    builder.SetStem(x->name + (rows ? ".rows" : ".heads"));
    Value*& y = exchanged[{x, rows}];
    if (y == nullptr) y = builder.Op("SequenceToHeads", {x}, rows ? of_rows : exchange);
    graph.SetInput(&attention, i, y);
  }
  if (Value* sinks = attention.in(3)) {
    builder.SetStem(sinks->name + ".held");
    graph.SetInput(&attention, 3, builder.Op("Slice", {sinks, builder.Ints({group * held}), builder.Ints({(group + 1) * held}),
                                                       builder.Ints({0})}));
  }
  if (sharing > 1) {
    attention.attributes.Set("row_shares", sharing);
    attention.attributes.Set("row_share", member_ % sharing);
  }
  InferNode(attention);
  const auto next = std::next(attention.self);
  Value* y = attention.out();
  Value* whole = graph.AddValue(y->name);
  graph.ReplaceUses(y, whole);
  Attributes back = of_rows;
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

int64_t SequenceUnit(const Graph& canonical, int64_t ranks) {
  for (const auto& node : canonical.nodes()) {
    if (Is(*node, "Attention", "ai.weir") && RanksPerHeads(*node, ranks) > 1) return 2 * ranks;
  }
  return ranks;
}

int64_t SequenceOfRank(const Graph& canonical, const Layout& layout, int64_t sequence) {
  const int64_t ranks = layout.context_parallel;
  WEIR_CHECK(ranks > 0 && sequence % ranks == 0, ErrorCode::kInvalidArgument, "--sequence=", sequence, " cannot be cut into --context-parallel=",
             ranks, " equal parts; use a multiple");
  const int64_t unit = SequenceUnit(canonical, ranks), below = sequence / unit * unit;
  WEIR_CHECK(below == sequence, ErrorCode::kInvalidArgument, "--sequence=", sequence, ": --context-parallel=", ranks,
             " is more than the heads can be spread over, so that ranks share heads and halve their parts; use a multiple of ", unit, ": ",
             below > 0 ? StrCat(below, " or ") : "", below + unit);
  return sequence / ranks;
}

}  // namespace weir
