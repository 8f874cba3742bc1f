#pragma once
#include <memory>
#include <ostream>

#include "backend/communicator.h"
#include "backend/device.h"

namespace weir {

struct CheckpointBenchOptions {
  int64_t layers = 8, tokens = 65536, hidden = 2048;
  int64_t products = 24;  // [tokens,hidden] x [hidden,hidden] of a layer's forward pass; backward has twice as many
  DType dtype = DType::kBFloat16;
  int repeats = 5;  // timed steps; the median is reported
  bool json = false;
};

// Layers of matrix products whose inputs stay on the device between forward and backward, beside the same with inputs in host memory:
// stashed where they are made, fetched one layer ahead. All ranks step at once and the slowest counts. Rank 0 prints seconds, bytes
// and the cost as a share of a step. Returns the exit status: 1 when the two gave different gradients.
int BenchCheckpoint(const CheckpointBenchOptions& options, const std::shared_ptr<Device>& device, Communicator* world, std::ostream& out);

}  // namespace weir
