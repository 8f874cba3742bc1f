#include "graph_passes/shard_vocabulary.h"

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/vocabulary_share.h"
#include "graph_passes/keep_rows.h"

namespace weir {

void ShardVocabulary::Shard(Graph& graph, Node& head) const {
  Value& weight = *head.in(1);
  const std::string what = "head weight", instead = "--vocab-parallel=1";
  for (const Use& use : weight.uses) {
    WEIR_CHECK(use.node == &head && use.index == 1, ErrorCode::kUnsupportedOp, what, " '", weight.name, "' is also read by ",
               use.node->op(), use.node->op() == "Embedding" ? " (tied embeddings)" : "",
               ", so it cannot be spread over ranks; use ", instead);
  }
  const int64_t vocabulary = weight.shape[0].Constant();
  KeepRows(weight, VocabularyShare(vocabulary, leaf_, ranks_, member_), "vocabulary_replica", what, instead);
  head.attributes.Set("group", std::string("vocabulary"));
  head.attributes.Set("vocab_parallel", ranks_);
  head.attributes.Set("vocabulary", vocabulary);
  if (!shard_gradient_ || head.out(2) == nullptr) return;
  head.attributes.Set("shard_gradient", int64_t{1});
  if (Value* accumulator = graph.FindValue(weight.name + ".grad")) accumulator->shape = weight.shape;
}

bool ShardVocabulary::Run(Graph& graph, PassContext& context) {
  for (const auto& node : graph.nodes()) {
    if (node->op() != "RingDtp") continue;
    Shard(graph, *node);
    context.Matched(*node);
  }
  WEIR_CHECK(context.matches > 0, ErrorCode::kInvalidArgument, "--vocab-parallel=", ranks_,
             ": the graph has no streamed head (RingDtp) to spread; do not disable stream_lm_head, or use --vocab-parallel=1");
  InferGraph(graph);
  return true;
}

}  // namespace weir
