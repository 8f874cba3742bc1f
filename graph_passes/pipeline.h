#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/layout.h"
#include "graph_passes/pass.h"
#include "graph_passes/router_losses.h"
#include "graph_passes/stream_optimizer.h"

namespace weir {

using NamedTensors = std::map<std::string, TensorDataPtr>;  // a weights file, by framework name

struct CanonicalizeOptions {
  const NamedTensors* names = nullptr;  // --names: match parameters by value to their framework names
  std::vector<std::string> freeze;      // glob patterns of parameters that stay constants
};

// The imported graph becomes the canonical inference graph: inputs {input_ids}, outputs {logits}
// (docs/canonical_graph.md), dims in terms of batch and sequence. Throws one Error listing every
// problem (op, node, reason).
void Canonicalize(Graph& graph, const CanonicalizeOptions& options, PassManager& passes);

// How the rows of experts travel (docs/streaming.md). No field changes a bit of any result.
struct StreamDispatchOptions {
  int64_t chunk_tokens = 0, max_chunks = 0;  // tokens of a rank per chunk; 0 = no limit
  double lambda = 1.3;      // a chunk whose fullest rank has less than this times the mean keeps experts at home
  double alpha = 1.1;       // else ranks are filled up to this times the mean
  int64_t min_rows = 256;   // fewer rows do not leave home
  int64_t max_foreign = 2;  // experts that a rank borrows at most
};

struct TrainingOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  // "matrices": parameters of two or more dims that are not norms or biases; "dims": every parameter of
  // two or more dims in its framework layout; "all".
  std::string decay = "matrices";
  double max_norm = 1.0;  // 0 = no clipping
  int64_t ignore_index = -100;
  bool token_weights = false;  // each position's loss has a weight (input token_weights); the mean is over weights
  RouterLossOptions router_losses = {};
  int64_t leaves = 16, unit_rows = 4096;
  bool deterministic = false;  // no library kernel that adds in any order (cuDNN's attention backward)
  std::string precision = "float32";  // of compute: float32, or bfloat16 with float32 masters (CUDA)
  int64_t strip = 0;  // columns of logits alive at a time (stream_lm_head); 0 = all, as separate nodes
  // With layout.vocabulary_parallel > 1, the head's gradient on a rank: "whole", added over ranks once a step, or "shard", added
  // in each micro-batch: one per step only, so that the order of its sums stays.
  std::string head_gradient = "whole";
  std::string move = "weights";  // what travels between the ranks of a spread head: weights, activations, auto
  int64_t vocab_leaf = 2048;  // columns of one (max, sum) pair of the log-sum-exp: changes rounding
  std::string recompute = "none";  // "layer": activations are computed again in backward (insert_recompute)
  int64_t host_budget = 0;         // bytes of layer boundaries held in host memory (stream_checkpoints); 0 = off
  std::string stash = "attention";  // what of it: "boundaries", or "attention": then kept attention outputs as well
  StreamOptimizerOptions offload = {};  // of the optimizer's moments; bucket 0 = off
  std::string pack = "attend";     // "isolate": attention keeps the documents of a row apart (isolate_documents)
  std::string keep = "none";       // with recompute: "attention" keeps attention outputs and log-sum-exps
  bool reduce_beside = false;      // sums over ranks begin in backward, where gradients are final: one micro-batch a step
  bool shard_optimizer = false;    // moments and masters of what all ranks hold are spread over them (shard_optimizer)
  // On top of it: "weights": what is spread is whole for a layer at a time (shard_parameters); "all": its gradients too, one
  // micro-batch a step.
  std::string shard_parameters = "none";
  Layout layout = {};  // of the ranks that run this graph together
  int64_t rank = 0;
  std::optional<StreamDispatchOptions> stream_dispatch = {};  // absent: plain experts
};

// Adds loss, backward, norm and AdamW to a canonical graph (docs/canonical_graph.md, training graph).
void BuildTrainingGraph(Graph& graph, const TrainingOptions& options, PassManager& passes);

// Binds batch and sequence: every shape becomes concrete and shape arithmetic folds away.
void SpecializeShapes(Graph& graph, int64_t batch, int64_t sequence);

// The rewrites that count bytes, on a training graph with bound shapes: boundaries within the host budget.
void PlaceOnHost(Graph& graph, const TrainingOptions& options, PassManager& passes);

}  // namespace weir
