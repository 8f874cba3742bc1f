#include "graph_passes/pipeline.h"

#include "graph_passes/bypass_last_token.h"
#include "graph_passes/canonical_shapes.h"
#include "graph_passes/check_canonical.h"
#include "graph_passes/classify_parameters.h"
#include "graph_passes/flatten_router.h"
#include "graph_passes/fold_constants.h"
#include "graph_passes/fuse_attention.h"
#include "graph_passes/fuse_experts.h"
#include "graph_passes/fuse_linear.h"
#include "graph_passes/fuse_rms_norm.h"
#include "graph_passes/fuse_rotary.h"
#include "graph_passes/lower_contrib.h"
#include "graph_passes/match_names.h"
#include "graph_passes/merge_common.h"
#include "graph_passes/simplify.h"
#include "graph_passes/sink_transposes.h"
#include "graph_passes/strip_inference.h"
#include "graph_passes/tie_parameters.h"
#include "graph_passes/widen_floats.h"

namespace weir {
namespace {

class Pipeline {
 public:
  Pipeline(Graph& graph, PassManager& passes) : graph_(graph), passes_(passes) {}

  template <class P, class... Args>
  bool Run(const Args&... args) {
    P pass(args...);
    return passes_.Run(pass, graph_);
  }

  // Until nothing changes; a round that still changes after the limit is a bug in a rule.
  void Clean() { CleanWith(/*sink=*/false); }
  void CleanAndSink() { CleanWith(/*sink=*/true); }

  void CleanWith(bool sink) {
    for (int round = 0; round < kMaxRounds; ++round) {
      bool changed = Run<FoldConstants>();
      changed |= Run<Simplify>();
      if (sink) changed |= Run<SinkTransposes>();
      changed |= Run<MergeCommon>();
      if (!changed) return;
    }
  }

 private:
  static constexpr int kMaxRounds = 16;
  Graph& graph_;
  PassManager& passes_;
};

}  // namespace

void Canonicalize(Graph& graph, const CanonicalizeOptions& options, PassManager& passes) {
  Pipeline pipeline(graph, passes);
  pipeline.Run<WidenFloats>();     // first: every later rule sees float32 only
  LowerContrib(graph, passes);     // before stripping: their caches are inputs and outputs
  pipeline.Run<StripInference>();  // before inference: dims then follow from input_ids
  const std::string logits = graph.outputs[0]->name;
  pipeline.Clean();
  if (pipeline.Run<BypassLastToken>()) pipeline.Clean();
  pipeline.Run<FuseExperts>();  // before Linear: their weights are stacked as the file stores them
  pipeline.Run<FuseRmsNorm>();
  pipeline.Run<FuseLinear>();
  pipeline.Run<FlattenRouter>();
  pipeline.Clean();
  pipeline.Run<FuseRotary>();
  pipeline.Clean();
  pipeline.Run<FuseAttention>();
  pipeline.CleanAndSink();
  pipeline.Run<CanonicalShapes>();  // last: masks are gone, what is left are reshapes
  pipeline.Clean();
  pipeline.Run<ClassifyParameters>();  // what earlier passes did not need to decide
  if (pipeline.Run<TieParameters>()) pipeline.Clean();
  if (options.names != nullptr) pipeline.Run<MatchNames>(*options.names);
  if (!options.freeze.empty()) pipeline.Run<FreezeParameters>(options.freeze);
  if (graph.FindValue(logits) == nullptr) graph.Rename(graph.outputs[0], logits);
  CheckCanonical(graph, passes.records());
}

}  // namespace weir
