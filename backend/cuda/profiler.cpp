#include "backend/profiler.h"

#include <nvtx3/nvToolsExt.h>

#include <cstdlib>

#include "graph/op_schema.h"

namespace weir {

bool ProfilerRange::IsWatched() {
  static const bool watched = std::getenv("WEIR_NVTX") != nullptr || std::getenv("NVTX_INJECTION64_PATH") != nullptr;  // Nsight sets it
  return watched;
}

void ProfilerRange::Begin(const Node& node) { nvtxRangePushA((node.op() + (node.source.empty() ? "" : " " + node.source)).c_str()); }

void ProfilerRange::End() { nvtxRangePop(); }

}  // namespace weir
