#pragma once
#include <memory>
#include <ostream>

#include "backend/communicator.h"
#include "backend/device.h"

namespace weir {

struct HeadBenchOptions {
  int64_t tokens = 8192, channels = 2048, vocabulary = 50304;  // tokens of each rank
  DType dtype = DType::kBFloat16;
  int64_t ranks = 1, vocabulary_parallel = 1, strip = 8192;
  int repeats = 5;  // timed runs; the median is reported
  bool json = false;
};

// Loss and gradients of a vocabulary head four ways, one after the other in one run: logits whole, in strips with the
// whole weight on every rank, in strips with the weight spread over ranks, the same with the weight's gradient. Only the last sums the
// weight's gradient over ranks. `world` moves this device's memory, nullptr on one rank; its layout is set here. Every rank calls
// it; rank 0 prints time, 6NHV flop rate, planned bytes in all and above inputs and results, bytes received, and whether
// spread and whole weight gave the same bits. Returns the exit status, 1 when they did not.
int BenchHead(const HeadBenchOptions& options, const std::shared_ptr<Device>& device, Communicator* world, std::ostream& out);

}  // namespace weir
