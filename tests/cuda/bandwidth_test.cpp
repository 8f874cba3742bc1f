// The memory-bound kernels of a training step, timed beside a plain copy of the same device in the same process.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "backend/kernel.h"
#include "graph/text.h"
#include "tests/cuda/gpu_harness.h"

namespace weir {
namespace {

constexpr int kRuns = 30;

// Seconds of one launch: the shortest of three batches.
template <class Launch>
double Seconds(const Launch& launch) {
  double best = 1e9;
  for (int batch = 0; batch < 3; ++batch) {
    launch();
    Gpu()->Synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < kRuns; ++run) launch();
    Gpu()->Synchronize();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRuns);
  }
  return best;
}

struct Timed {
  const char* name;
  const char* graph;  // one node; every input and output moves once
};

const Timed kTimed[] = {
    {"Add float", "graph g (float[8192,4096] a, float[8192,4096] b) => (float[8192,4096] y) { y = Add(a, b) }"},
    {"Add bfloat16", "graph g (bfloat16[8192,4096] a, bfloat16[8192,4096] b) => (bfloat16[8192,4096] y) { y = Add(a, b) }"},
    {"Mul by a column", "graph g (float[8192,4096] a, float[8192,1] b) => (float[8192,4096] y) { y = Mul(a, b) }"},
    {"Sigmoid float", "graph g (float[8192,4096] a) => (float[8192,4096] y) { y = Sigmoid(a) }"},
    {"Sigmoid bfloat16", "graph g (bfloat16[8192,4096] a) => (bfloat16[8192,4096] y) { y = Sigmoid(a) }"},
    {"RmsNorm float", "graph g (float[8192,4096] x, float[4096] w) => (float[8192,4096] y) { y, r = RmsNorm<epsilon = 1e-05>(x, w) }"},
    {"RmsNorm bfloat16",
     "graph g (bfloat16[8192,4096] x, float[4096] w) => (bfloat16[8192,4096] y) { y, r = RmsNorm<epsilon = 1e-05>(x, w) }"},
    {"RmsNormGradient float",
     "graph g (float[8192,4096] x, float[4096] w, float[8192] r, float[8192,4096] dy) => (float[8192,4096] dx) "
     "{ dx, dw = RmsNormGradient<epsilon = 1e-05>(x, w, r, dy) }"},
    {"Rotary float",
     "graph g (float[2,4096,32,128] x, float[4096,64] c, float[4096,64] s) => (float[2,4096,32,128] y) { y = Rotary(x, c, s) }"},
    {"Rotary bfloat16",
     "graph g (bfloat16[2,4096,32,128] x, float[4096,64] c, float[4096,64] s) => (bfloat16[2,4096,32,128] y) { y = Rotary(x, c, s) }"},
    {"Softmax of 128", "graph g (float[65536,128] x) => (float[65536,128] y) { y = Softmax(x) }"},
    {"SoftmaxGradient of 128",
     "graph g (float[65536,128] y, float[65536,128] dy) => (float[65536,128] dx) { dx = SoftmaxGradient(y, dy) }"},
    {"TopK 8 of 128", "graph g (float[65536,128] x) => (float[65536,8] v, int64[65536,8] i) { v, i = TopK(x, int64[1]{8}) }"},
    {"Accumulate", "graph g (float[8192,4096] a, float[8192,4096] g) => (float[8192,4096] y) { y = Accumulate(a, g) }"},
    {"AdamW",
     "graph g (float[8192,4096] p, float[8192,4096] g, float[8192,4096] m, float[8192,4096] v, double[] lr, int64[] t, float[] c)"
     " => (float[8192,4096] q) { q, n, w = AdamW(p, g, m, v, lr, t, c) }"},
    {"GradientNorm", "graph g (float[8192,4096] a) => (double[] n) { n = GradientNorm(a) }"},
    {"Cast to bfloat16", "graph g (float[8192,4096] a) => (bfloat16[8192,4096] y) { y = Cast<to = 16>(a) }"},
};

// Zeros serve: no kernel here is faster on them.
double BytesPerSecond(const char* text) {
  const auto graph = ParseText(text);
  const Node& node = *graph->nodes().front();
  Device& device = *Gpu();
  std::vector<std::pair<std::byte*, int64_t>> owned;
  const auto tensor = [&](const Value* value) {
    if (value == nullptr) return Tensor{};
    Tensor t{.bytes = nullptr, .dtype = value->dtype, .dims = ToDims(value->shape)};
    t.bytes = device.Allocate(t.size_bytes());
    owned.emplace_back(t.bytes, t.size_bytes());
    return t;
  };
  std::vector<Tensor> inputs, outputs;
  double bytes = 0;
  for (const Value* value : node.inputs) bytes += static_cast<double>(inputs.emplace_back(tensor(value)).size_bytes());
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const auto& aliases = node.schema->aliases;
    const auto alias = std::find_if(aliases.begin(), aliases.end(), [&](const auto& a) {
      return a.first == static_cast<int>(i) && static_cast<size_t>(a.second) < inputs.size();
    });
    outputs.push_back(alias == aliases.end() ? tensor(node.outputs[i]) : inputs[static_cast<size_t>(alias->second)]);
    bytes += static_cast<double>(outputs.back().size_bytes());
  }
  const Kernel& kernel = *FindKernel(DeviceKind::kCuda, *node.schema);
  const int64_t scratch = kernel.workspace_bytes ? kernel.workspace_bytes(node) : 0;
  std::byte* workspace = device.Allocate(scratch);
  owned.emplace_back(workspace, scratch);
  if (node.op() == "AdamW") {
    const int64_t step = 1;
    device.Upload(inputs[5].bytes, &step, sizeof(step));
  }
  KernelContext context{.node = node, .inputs = inputs, .outputs = outputs,
                        .workspace = {workspace, static_cast<size_t>(scratch)}, .stream = device.stream()};
  const double seconds = Seconds([&] { kernel.launch(context); });
  for (const auto& [memory, size] : owned) device.Free(memory, size);
  return bytes / seconds;
}

double CopyBytesPerSecond() {
  return BytesPerSecond("graph g (float[16384,8192] x) => (float[16384,8192] y) { y = Identity(x) }");
}

TEST(CudaBandwidth, EveryTimedGraphHasAKernel) {
  for (const Timed& op : kTimed) EXPECT_EQ(Unsupported(*ParseText(op.graph)), "") << op.name;
}

// Measured shares of a copy's bandwidth; the floor catches a kernel that lost its vector loads.
TEST(CudaBandwidth, RowOpsRunNearACopy) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const double copy = CopyBytesPerSecond();
  std::cout << "copy " << copy / 1e9 << " GB/s\n";
  for (const Timed& op : kTimed) {
    const double share = BytesPerSecond(op.graph) / copy;
    std::cout << op.name << " " << share * copy / 1e9 << " GB/s, " << share << " of a copy\n";
    EXPECT_GT(share, 0.1) << op.name;
  }
}

}  // namespace
}  // namespace weir
