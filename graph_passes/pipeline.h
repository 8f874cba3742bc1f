#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/layout.h"
#include "graph_passes/pass.h"
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

struct TrainingOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  // "matrices": parameters of two or more dims that are not norms or biases; "dims": every parameter of
  // two or more dims in its framework layout; "all".
  std::string decay = "matrices";
  double max_norm = 1.0;  // 0 = no clipping
  int64_t ignore_index = -100;
  int64_t leaves = 16, unit_rows = 4096;
  std::string precision = "float32";  // of compute: float32, or bfloat16 with float32 masters (CUDA)
  int64_t strip = 0;  // columns of logits alive at a time (stream_lm_head); 0 = all, as separate nodes
  std::string recompute = "none";  // "layer": activations are computed again in backward (insert_recompute)
  int64_t host_budget = 0;         // bytes of layer boundaries held in host memory (stream_checkpoints); 0 = off
  StreamOptimizerOptions offload = {};  // of the optimizer's moments; bucket 0 = off
  std::string keep = "none";       // with recompute: "attention" keeps attention outputs and log-sum-exps
  Layout layout = {};  // of the ranks that run this graph together
};

// Adds loss, backward, norm and AdamW to a canonical graph (docs/canonical_graph.md, training graph).
void BuildTrainingGraph(Graph& graph, const TrainingOptions& options, PassManager& passes);

// Binds batch and sequence: every shape becomes concrete and shape arithmetic folds away.
void SpecializeShapes(Graph& graph, int64_t batch, int64_t sequence);

// The rewrites that count bytes, on a training graph with bound shapes: boundaries within the host budget.
void PlaceOnHost(Graph& graph, const TrainingOptions& options, PassManager& passes);

}  // namespace weir
