#include "graph_passes/shard_optimizer.h"

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/keep_rows.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

Node* After(Graph& graph, Node& node) {
  const auto next = std::next(node.self);
  return next == graph.nodes().end() ? nullptr : next->get();
}

Node* FirstAfterBegin(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->phase != Phase::kBegin) return node.get();
  }
  return nullptr;
}

bool IsStep(const Use& use) { return use.index == 0 && Is(*use.node, "AdamW", "ai.weir"); }

// What reads `part` gets all rows. Its own maker and AdamW, which steps the part, aside.
void GatherFor(Graph& graph, Value* part, const std::vector<Use>& uses, int64_t ranks, int64_t rows, Node* before) {
  if (uses.empty()) return;
  Builder builder(graph, before);
  builder.SetPhase(Phase::kBegin);
  builder.SetSource("parameter rows of '" + part->name + "'");
  builder.SetStem(part->name + ".whole");
  Value* whole = builder.Op("AllGatherRows", {part}, {{"group", std::string("world")}, {"ranks", ranks}, {"rows", rows}});
  for (const Use& use : uses) graph.SetInput(use.node, static_cast<size_t>(use.index), whole);
}

}  // namespace

std::string ShardOptimizer::WhyNot(const Node& adamw) const {
  const Value& parameter = *adamw.in(0);
  if (ranks_ == 1) return "one rank holds everything";
  if (parameter.parameter->shard) return StrCat("is sharded already, ", ToString(parameter.shape), " of ", parameter.parameter->shard->total, " rows");
  if (parameter.parameter->shared_by != "world") return StrCat("is shared by '", parameter.parameter->shared_by, "' ranks only");
  if (parameter.shape.size() < 2) return "is a vector";
  const int64_t rows = parameter.shape[0].Constant();
  return rows < ranks_ ? StrCat("has ", rows, " rows for ", ranks_, " ranks") : "";
}

void ShardOptimizer::Shard(Graph& graph, Node& adamw) const {
  Value& parameter = *adamw.in(0);
  const int64_t rows = parameter.shape[0].Constant();
  const Share share = ShareOf(rows, ranks_, rank_);
  const std::vector<Use> uses = parameter.uses;
  KeepRows(parameter, share, "world", "parameter", "no --shard-optimizer");
  for (const size_t moment : {2, 3}) adamw.in(moment)->shape[0] = share.size();
  std::vector<Use> direct;
  for (const Use& use : uses) {
    if (IsStep(use)) continue;
    if (!Is(*use.node, "Cast") || use.node->phase != Phase::kBegin) {
      direct.push_back(use);
      continue;
    }
    Value* cast = use.node->out();
    const std::vector<Use> readers = cast->uses;
    InferNode(*use.node);
    GatherFor(graph, cast, readers, ranks_, rows, After(graph, *use.node));
  }
  GatherFor(graph, &parameter, direct, ranks_, rows, FirstAfterBegin(graph));
  Builder builder(graph, &adamw);
  builder.SetPhase(adamw.phase);
  builder.SetSource(adamw.source);
  builder.SetStem(parameter.name + ".grad.held");
  graph.SetInput(&adamw, 1, builder.Op("Slice", {adamw.in(1), builder.Ints({share.begin}), builder.Ints({share.end}), builder.Ints({0})}));
  InferNode(adamw);
}

bool ShardOptimizer::Run(Graph& graph, PassContext& context) {
  context.listed = true;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (Is(*node, "AdamW", "ai.weir")) nodes.push_back(node.get());
  }
  for (Node* node : nodes) {
    if (const std::string why = WhyNot(*node); !why.empty()) {
      context.Missed(*node, why);
      continue;
    }
    Shard(graph, *node);
    context.Matched(*node);
  }
  std::string reasons;
  for (const std::string& miss : context.misses) reasons += "\n  " + miss;
  WEIR_CHECK(context.matches > 0, ErrorCode::kInvalidArgument, "--shard-optimizer: no parameter can be sharded over ", ranks_,
             " ranks; leave the flag out:", reasons);
  return true;
}

}  // namespace weir
