#pragma once
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/communicator.h"
#include "backend/device.h"

namespace weir {

struct DispatchBenchOptions {
  int64_t tokens = 65536, hidden = 7168, expert_width = 2048, experts = 32, top_k = 8;  // of a rank
  // Percent of all routes that go to the first `hot_experts` experts, evenly; the others share the
  // rest. 0 = all experts alike.
  double skew = 0;
  int64_t hot_experts = 4;
  int64_t expert_parallel = 1, leaves = 16, unit_rows = 4096;
  int64_t chunk_tokens = 0, max_chunks = 0;  // of the pipelined run
  double lambda = 1.3, alpha = 1.1;          // of it and of its twin
  int64_t min_rows = 256, max_foreign = 4;
  DType dtype = DType::kBFloat16;
  int repeats = 10;
  bool json = false;
};

// The expert that a slot of a token routes to: a pure function, so that every run is the same.
int64_t SyntheticRoute(const DispatchBenchOptions& options, int64_t rank, int64_t token,
                       int64_t slot);

struct DispatchTiming {
  std::string name;
  bool forward_fits = false, backward_fits = false;
  double forward_s = 0, backward_s = 0, both_s = 0;                  // of the slowest rank, medians
  int64_t forward_workspace = 0, backward_workspace = 0, arena = 0;  // planned bytes of a rank
  double forward_sent = 0, both_sent = 0;                            // bytes that left a rank, mean
  double load = 0;                   // rows of the fullest rank over the mean, all chunks
  int64_t chunks = 0, borrowed = 0;  // borrowed: experts, of the rank with the most
  std::string refusal = {};          // why it does not fit
};

// Plain expert parallelism (everything at home, one chunk), least-loaded in one chunk, and
// pipelined; every rank calls it alike. `world` moves memory of `device`; nullptr alone.
std::vector<DispatchTiming> TimeDispatch(const DispatchBenchOptions& options,
                                         const std::shared_ptr<Device>& device,
                                         Communicator* world);
void PrintDispatch(const DispatchBenchOptions& options, const std::vector<DispatchTiming>& timings,
                   DeviceKind device, int64_t ranks, std::ostream& out);

}  // namespace weir
