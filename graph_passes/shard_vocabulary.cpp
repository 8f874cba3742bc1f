#include "graph_passes/shard_vocabulary.h"

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/vocabulary_share.h"
#include "graph_passes/keep_rows.h"

namespace weir {

// A rank's gradient of all columns is made where all columns are.
bool ShardVocabulary::TokensMayTravel(const Node& head) const {
  if (o_.move == "weights" || (o_.move == "auto" && head.out(2) != nullptr && !o_.shard_gradient)) return false;
  const Shape& weight = head.in(1)->shape;
  const int64_t bytes = BytesOf(DType::kFloat32, weight[0].Constant() * weight[1].Constant()) / o_.ranks * (o_.ranks - 1);
  WEIR_CHECK(head.out(2) == nullptr || o_.shard_gradient, ErrorCode::kInvalidArgument, "--move=activations: parts of '", head.in(1)->name,
             "'s gradient would come back to every rank, ", bytes, " bytes in float32, as many as its weight or more; add --head-gradient=shard, or use --move=weights");
  return true;
}

// A tied embedding reads any row: the table is whole while it does.
void ShardVocabulary::GatherFor(Graph& graph, Node& embedding, Value& weight, int64_t rows, int64_t unit) const {
  Builder builder(graph, &embedding);
  builder.SetPhase(embedding.phase);
  builder.SetSource(embedding.source);
  builder.SetStem(weight.name + ".whole");
  Attributes attributes = {{"group", std::string("vocabulary")}, {"ranks", o_.ranks}, {"rows", rows}};
  if (unit != 1) attributes.Set("unit", unit);
  graph.SetInput(&embedding, 1, builder.Op("AllGatherRows", {&weight}, attributes));
}

void ShardVocabulary::Shard(Graph& graph, Node& head) const {
  Value& weight = *head.in(1);
  const std::string what = "head weight", instead = "--vocab-parallel=1";
  std::vector<Node*> embeddings;
  for (const Use& use : weight.uses) {
    const bool tied = use.node->op() == "Embedding" && use.index == 1;
    if (tied) embeddings.push_back(use.node);
    WEIR_CHECK(tied || (use.node == &head && use.index == 1), ErrorCode::kUnsupportedOp, what, " '", weight.name, "' is also read by ",
               use.node->op(), ", so it cannot be spread over ranks; use ", instead);
    WEIR_CHECK(!tied || !o_.shard_gradient || head.out(2) == nullptr, ErrorCode::kUnsupportedOp, what, " '", weight.name,
               "' is the embedding's too (tied), whose gradient has rows of all ranks' columns; use --head-gradient=whole");
  }
  const int64_t vocabulary = weight.shape[0].Constant();
  const bool travel = TokensMayTravel(head);
  const int64_t unit = travel && o_.share > 0 ? o_.share : o_.leaf;
  KeepRows(weight, VocabularyShare(vocabulary, unit, o_.ranks, o_.member), "vocabulary_replica", what, instead);
  for (Node* embedding : embeddings) GatherFor(graph, *embedding, weight, vocabulary, unit);
  head.attributes.Set("group", std::string("vocabulary"));
  head.attributes.Set("vocab_parallel", o_.ranks);
  head.attributes.Set("vocabulary", vocabulary);
  if (travel) head.attributes.Set("move", o_.move);
  if (unit != o_.leaf) head.attributes.Set("share_columns", unit);
  if (!o_.shard_gradient || head.out(2) == nullptr) return;
  head.attributes.Set("shard_gradient", int64_t{1});
  if (Value* accumulator = graph.FindValue(weight.name + ".grad")) accumulator->shape = weight.shape;
}

bool ShardVocabulary::Run(Graph& graph, PassContext& context) {
  for (const auto& node : graph.nodes()) {
    if (node->op() != "RingDtp") continue;
    Shard(graph, *node);
    context.Matched(*node);
  }
  WEIR_CHECK(context.matches > 0, ErrorCode::kInvalidArgument, "--vocab-parallel=", o_.ranks,
             ": the graph has no streamed head (RingDtp) to spread; do not disable stream_lm_head, or use --vocab-parallel=1");
  InferGraph(graph);
  return true;
}

}  // namespace weir
