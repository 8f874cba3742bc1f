#pragma once
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "backend/device.h"

namespace weir {

struct RowBenchOptions {
  DeviceKind device = DeviceKind::kCpu;
  int64_t tokens = 8192;  // rows; 4096 channels, 32 heads of 128, 128 experts
  int repeats = 30;
  bool json = false;
};

// One memory-bound op of a training step. `bytes`: every input and output moves once.
struct RowTiming {
  std::string name;
  double bytes = 0, seconds = 0;
  double BytesPerSecond() const { return bytes / seconds; }
};

// The ops in float32 and, on a GPU, in bfloat16; a plain copy comes first.
std::vector<RowTiming> TimeRowOps(const RowBenchOptions& options);
// Prints time, bandwidth and share of the copy's. Returns the exit status.
int BenchRows(const RowBenchOptions& options, std::ostream& out);

}  // namespace weir
