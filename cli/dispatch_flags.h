#pragma once
#include "cli/options.h"
#include "graph_passes/pipeline.h"

namespace weir {

// How sequences and experts are spread over ranks and experts' rows streamed: flags that train and plan share.
struct DispatchFlags {
  int64_t expert_parallel = 1, context_parallel = 1, vocabulary_parallel = 1;
  bool shard_optimizer = false;
  std::string shard_parameters = "none";
  StreamDispatchOptions stream;

  po::options_description Options();
  void Check(int64_t ranks, int64_t sequence = 0) const;  // throws UsageError; 0: no sequence is cut
  // Streaming is on when chunks or several ranks were asked for.
  void Apply(TrainingOptions& training, int64_t sequence) const;
};

// Why a step of these flags has one micro-batch (--grad-accumulation 1), or "".
std::string NeedsOneMicroBatch(const TrainingOptions& training, const DispatchFlags& dispatch, int64_t ranks);

}  // namespace weir
