#pragma once
#include <ostream>
#include <string>
#include <vector>

#include "backend/device.h"

namespace weir {

struct HeavyBenchOptions {
  std::string subject;  // gemm, attention, experts or head
  DeviceKind device = DeviceKind::kCuda;
  DType dtype = DType::kBFloat16;
  std::vector<std::vector<int64_t>> shapes;  // empty = those of bench/peers/heavy_ops.py
  std::string peer;                          // that script; empty = none
  int repeats = 10;                          // timed runs; the median is reported
  bool json = false;
};

// What a shape's numbers mean: "M,N,K" and so on; "" for an unknown subject.
std::string ShapeNames(const std::string& subject);

// Times forward and backward nodes and, with a peer, the PyTorch script on the same shapes as a
// child of this process once its memory is free. Prints time, TFLOP/s, workspace bytes and the
// ratio. Returns the exit status: 0, or 1 when the peer failed.
int BenchHeavy(const HeavyBenchOptions& options, std::ostream& out);

struct HeavyTiming {
  std::string name;  // "forward"
  double seconds = 0, flops = 0;
};
// Times each node of a subject at one shape.
std::vector<HeavyTiming> TimeHeavy(Device& device, const HeavyBenchOptions& options, const std::vector<int64_t>& shape);

}  // namespace weir
