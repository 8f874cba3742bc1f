#pragma once
#include "cli/options.h"
#include "graph_passes/pipeline.h"

namespace weir {

// How experts are spread over ranks and their rows streamed: flags that train and plan share.
struct DispatchFlags {
  int64_t expert_parallel = 1;
  StreamDispatchOptions stream;

  po::options_description Options();
  void Check(int64_t ranks) const;  // throws UsageError
  // Streaming is on when chunks or several ranks were asked for.
  void Apply(TrainingOptions& training) const;
};

}  // namespace weir
