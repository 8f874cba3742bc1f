#include <numeric>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/add_loss.h"
#include "graph_passes/add_optimizer.h"
#include "graph_passes/build_gradient.h"
#include "graph_passes/insert_recompute.h"
#include "graph_passes/isolate_documents.h"
#include "graph_passes/lower_precision.h"
#include "graph_passes/pipeline.h"
#include "graph_passes/reduce_beside.h"
#include "graph_passes/reduce_gradients.h"
#include "graph_passes/router_losses.h"
#include "graph_passes/shard_context.h"
#include "graph_passes/shard_experts.h"
#include "graph_passes/shard_optimizer.h"
#include "graph_passes/shard_parameters.h"
#include "graph_passes/shard_vocabulary.h"
#include "graph_passes/split_master.h"
#include "graph_passes/stream_checkpoints.h"
#include "graph_passes/stream_dispatch.h"
#include "graph_passes/stream_lm_head.h"

namespace weir {
namespace {

// The unit definition of expert weight gradients (docs/canonical_graph.md) travels on their nodes.
void SetUnits(Graph& graph, const TrainingOptions& options) {
  WEIR_CHECK(options.leaves > 0, ErrorCode::kInvalidArgument, "--leaves=", options.leaves, " must be positive");
  WEIR_CHECK(options.unit_rows > 0, ErrorCode::kInvalidArgument, "--unit-rows=", options.unit_rows, " must be positive");
  for (const auto& node : graph.nodes()) {
    if (node->op() != "ExpertsGradient") continue;
    node->attributes.Set("leaves", options.leaves);
    node->attributes.Set("unit_rows", options.unit_rows);
  }
}

void ForbidUnorderedSums(Graph& graph, const TrainingOptions& options) {
  if (!options.deterministic) return;
  for (const auto& node : graph.nodes()) {
    if (node->op() == "AttentionGradient") node->attributes.Set("deterministic", int64_t{1});
  }
}

// Before every pass that streams an op: the clones are then streamed as well.
void Recompute(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  WEIR_CHECK(options.recompute == "none" || options.recompute == "layer", ErrorCode::kInvalidArgument, "--recompute=",
             options.recompute, " is unknown; use none or layer");
  WEIR_CHECK(options.recompute == "layer" || options.keep == "none", ErrorCode::kInvalidArgument, "--recompute-keep=", options.keep,
             " says what --recompute layer keeps; add --recompute layer");
  if (options.recompute == "none") return;
  InsertRecompute pass(options.keep);
  passes.Run(pass, graph);
}

// Before gradients, which are then those of the exchanges, and before every pass that copies or types nodes.
void SpreadSequences(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  options.layout.Validate();
  const int64_t ranks = options.layout.context_parallel;
  if (ranks == 1) return;
  WEIR_CHECK(!passes.disabled.contains("shard_context"), ErrorCode::kInvalidArgument, "--context-parallel=", ranks,
             " needs the pass shard_context; do not disable it");
  ShardContext shard(ranks, options.rank % ranks);
  passes.Run(shard, graph);
}

void KeepDocumentsApart(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  WEIR_CHECK(options.pack == "attend" || options.pack == "isolate", ErrorCode::kInvalidArgument, "--pack=", options.pack,
             " is unknown; use attend or isolate");
  if (options.pack == "attend") return;
  WEIR_CHECK(!passes.disabled.contains("isolate_documents"), ErrorCode::kInvalidArgument,
             "--pack=isolate needs the pass isolate_documents; do not disable it");
  IsolateDocuments isolate(options.layout.context_parallel > 1);
  passes.Run(isolate, graph);
}

void StreamMoments(Graph& graph, const StreamOptimizerOptions& options, PassManager& passes) {
  WEIR_CHECK(options.bucket != 0 || (options.slots == StreamOptimizerOptions{}.slots && options.resident == 0), ErrorCode::kInvalidArgument,
             options.resident == 0 ? "--slots" : "--resident", " says how the moments of --bucket travel; add --bucket");
  if (options.bucket == 0) return;
  StreamOptimizer stream(options);
  passes.Run(stream, graph);
}

void SpreadExperts(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  options.layout.Validate();
  const int64_t ranks = options.layout.expert_parallel;
  if (ranks == 1 && !options.stream_dispatch) return;
  StreamDispatch stream(options.stream_dispatch, ranks);
  passes.Run(stream, graph);
  if (ranks == 1) return;
  ShardExperts shard(ranks, options.rank % ranks);
  passes.Run(shard, graph);
}

// Rows of what all ranks hold: of the optimizer's state, then of weights and gradients too.
void SpreadParameters(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  const std::string& what = options.shard_parameters;
  WEIR_CHECK(what == "none" || what == "weights" || what == "all", ErrorCode::kInvalidArgument, "--shard-parameters=", what,
             " is unknown; use none, weights or all");
  if (!options.shard_optimizer && what == "none") return;
  ShardOptimizer optimizer(options.layout, options.rank);
  passes.Run(optimizer, graph);
  if (what == "none") return;
  WEIR_CHECK(!passes.disabled.contains("shard_optimizer"), ErrorCode::kInvalidArgument, "--shard-parameters=", what,
             " needs the pass shard_optimizer; do not disable it");
  ShardParameters parameters(options.layout, what == "all");
  passes.Run(parameters, graph);
}

void CheckHeadMove(const TrainingOptions& options) {
  if (options.move == "weights") return;
  WEIR_CHECK(options.move == "activations" || options.move == "auto", ErrorCode::kInvalidArgument, "--move=", options.move,
             " is unknown; use weights, activations or auto");
  WEIR_CHECK(options.move == "auto" || options.layout.vocabulary_parallel > 1, ErrorCode::kInvalidArgument,
             "--move=activations has no effect without --vocab-parallel above 1");
}

void CheckHeadGradient(const TrainingOptions& options) {
  if (options.head_gradient == "whole") return;
  WEIR_CHECK(options.head_gradient == "shard", ErrorCode::kInvalidArgument, "--head-gradient=", options.head_gradient,
             " is unknown; use whole or shard");
  const int64_t ranks = options.layout.vocabulary_parallel, groups = options.layout.world / ranks;
  WEIR_CHECK(ranks > 1, ErrorCode::kInvalidArgument, "--head-gradient=shard has no effect without --vocab-parallel above 1");
  WEIR_CHECK((groups & (groups - 1)) == 0, ErrorCode::kInvalidArgument, "--head-gradient=shard: ", groups,
             " vocabulary groups add in another order than all ranks together; make --ranks / --vocab-parallel a power of two, or use whole");
}

// A head that is spread over ranks is streamed in any case.
void SpreadVocabulary(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  constexpr int64_t kStrip = 8192;
  const int64_t ranks = options.layout.vocabulary_parallel, leaf = options.vocab_leaf;
  WEIR_CHECK(options.strip >= 0, ErrorCode::kInvalidArgument, "--strip=", options.strip, " must be positive, or 0 for off");
  WEIR_CHECK(leaf > 0, ErrorCode::kInvalidArgument, "--vocab-leaf=", leaf, " must be positive");
  CheckHeadMove(options);
  CheckHeadGradient(options);
  if (options.strip == 0 && ranks == 1) {
    WEIR_CHECK(leaf == StreamLmHead::kDefaultLeaf, ErrorCode::kInvalidArgument, "--vocab-leaf=", leaf,
               " is kept by the streamed head alone; add --strip ", kStrip);
    return;
  }
  StreamLmHead head(options.strip > 0 ? options.strip : kStrip, leaf);
  passes.Run(head, graph);
  if (ranks == 1) return;
  const int64_t share = options.precision == "bfloat16" ? std::lcm(leaf, kBFloat16Columns) : 0;
  ShardVocabulary shard({.ranks = ranks,
                         .member = options.rank % ranks,
                         .leaf = leaf,
                         .share = share,
                         .shard_gradient = options.head_gradient == "shard",
                         .move = options.move});
  passes.Run(shard, graph);
}

void Lower(Graph& graph, const std::string& precision, PassManager& passes) {
  const bool weights = precision == "bfloat16-weights";
  WEIR_CHECK(precision == "float32" || precision == "bfloat16" || weights, ErrorCode::kInvalidArgument, "--precision=", precision,
             " is unknown; use float32, bfloat16 or bfloat16-weights");
  if (precision == "float32") return;
  LowerPrecision lower(weights ? LowerPrecision::kWeights : LowerPrecision::kCompute);
  passes.Run(lower, graph);
}

}  // namespace

void BuildTrainingGraph(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  AddLoss loss(options.ignore_index, options.token_weights);
  passes.Run(loss, graph);
  SpreadSequences(graph, options, passes);
  KeepDocumentsApart(graph, options, passes);
  if (options.router_losses.enabled()) {
    RouterLosses router(options.router_losses, options.ignore_index);
    passes.Run(router, graph);
  }
  BuildGradient gradient;
  passes.Run(gradient, graph);
  SetUnits(graph, options);
  ForbidUnorderedSums(graph, options);
  Recompute(graph, options, passes);
  SpreadExperts(graph, options, passes);
  SpreadVocabulary(graph, options, passes);
  Lower(graph, options.precision, passes);
  AddOptimizer optimizer(options);
  passes.Run(optimizer, graph);
  if (options.layout.world > 1) {
    ReduceGradients reduce(options.layout, options.vocab_leaf);
    passes.Run(reduce, graph);
  }
  SpreadParameters(graph, options, passes);
  if (options.reduce_beside && options.layout.world > 1) {
    ReduceBeside beside;
    passes.Run(beside, graph);
  }
  if (options.precision != "float32") {
    SplitMasters split;
    passes.Run(split, graph);
  }
  StreamMoments(graph, options.offload, passes);
  graph.RemoveDeadNodes(/*drop_values=*/false);
}

void PlaceOnHost(Graph& graph, const TrainingOptions& options, PassManager& passes) {
  WEIR_CHECK(options.host_budget >= 0, ErrorCode::kInvalidArgument, "--host-budget=", options.host_budget, " must not be negative");
  WEIR_CHECK(options.host_budget > 0 || options.stash == TrainingOptions{}.stash, ErrorCode::kInvalidArgument, "--stash=", options.stash,
             " says what --host-budget holds; add --host-budget");
  if (options.host_budget == 0) return;
  StreamCheckpoints pass(options.host_budget, options.stash);
  passes.Run(pass, graph);
}

}  // namespace weir
