#pragma once
#include <memory>
#include <ostream>
#include <string>

#include "backend/communicator.h"
#include "backend/device.h"
#include "graph_passes/stream_optimizer.h"

namespace weir {

struct OptimizerBenchOptions {
  int64_t parameters = int64_t{1} << 30, tensors = 16;  // of each rank, in matrices of one size
  StreamOptimizerOptions offload = {.bucket = int64_t{1} << 23, .slots = 3, .resident = 0};
  int repeats = 10;  // timed steps; the median is reported
  std::string peer;  // bench/peers/optimizer.py; empty = none
  bool json = false;
};

// AdamW of split masters alone, with all state on the device and streamed from host memory, beside what the streamed bytes take when
// they are only copied, both ways at once, in the same run. All ranks step at once and the slowest counts. Rank 0 prints seconds,
// bytes, ratios and the peer's. Returns the exit status: 1 when the two gave different bits, or the peer failed.
int BenchOptimizer(const OptimizerBenchOptions& options, const std::shared_ptr<Device>& device, Communicator* world, std::ostream& out);

}  // namespace weir
