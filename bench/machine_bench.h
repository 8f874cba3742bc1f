#pragma once
#include <string>
#include <utility>
#include <vector>

#include "backend/communicator.h"
#include "backend/device.h"

namespace weir {

struct MachineBenchOptions {
  DType dtype = DType::kBFloat16;
  // Of the products, attention and experts, in the terms of `weir bench`, and of every copy and message.
  std::vector<int64_t> gemm = {8192, 8192, 8192}, attention = {32768, 16, 16, 128}, experts = {65536, 64, 8, 2048, 1024};
  int64_t bytes = int64_t{1} << 30;
  int repeats = 10;
};

// What the machine does per second, flop or bytes, under the names that `weir plan --machine` reads. All ranks of `world`
// (nullptr alone; it moves the device's memory) measure at once and the slowest counts: they may share host memory and links.
std::vector<std::pair<std::string, double>> MeasureMachine(const MachineBenchOptions& options, Device& device, Communicator* world);

}  // namespace weir
