#include "bench/row_bench.h"

#include <algorithm>
#include <chrono>
#include <iomanip>

#include "bench/node_memory.h"
#include "graph/error.h"
#include "graph/text.h"

namespace weir {
namespace {

// One node as text; T stands for the tokens, A for the activations' type.
struct TimedOp {
  const char* name;
  const char* graph;
  bool activations;  // runs in bfloat16 as well
};
const TimedOp kTimed[] = {
    {"copy", "(float[T,4096] x) => (float[T,4096] y) { y = Identity(x) }", false},
    {"Add", "(A[T,4096] a, A[T,4096] b) => (A[T,4096] y) { y = Add(a, b) }", true},
    {"Mul by a column", "(A[T,4096] a, A[T,1] b) => (A[T,4096] y) { y = Mul(a, b) }", true},
    {"Sigmoid", "(A[T,4096] a) => (A[T,4096] y) { y = Sigmoid(a) }", true},
    {"RmsNorm", "(A[T,4096] x, float[4096] w) => (A[T,4096] y) { y, r = RmsNorm<epsilon = 1e-05>(x, w) }",
     true},
    {"RmsNorm of 128",
     "(A[T,32,128] x, float[128] w) => (A[T,32,128] y) { y, r = RmsNorm<epsilon = 1e-05>(x, w) }", true},
    {"RmsNormGradient",
     "(A[T,4096] x, float[4096] w, float[T] r, A[T,4096] dy) => (A[T,4096] dx) "
     "{ dx, dw = RmsNormGradient<epsilon = 1e-05>(x, w, r, dy) }",
     true},
    {"Rotary", "(A[1,T,32,128] x, float[T,64] c, float[T,64] s) => (A[1,T,32,128] y) { y = Rotary(x, c, s) }",
     true},
    {"Softmax of 128", "(float[T,128] x) => (float[T,128] y) { y = Softmax(x) }", false},
    {"SoftmaxGradient of 128",
     "(float[T,128] y, float[T,128] dy) => (float[T,128] dx) { dx = SoftmaxGradient(y, dy) }", false},
    {"TopK 8 of 128", "(float[T,128] x) => (float[T,8] v, int64[T,8] i) { v, i = TopK(x, int64[1]{8}) }",
     false},
    {"BiasGradient", "(A[T,4096] dy) => (float[4096] db) { db = BiasGradient(dy) }", true},
    {"Accumulate", "(float[T,4096] a, float[T,4096] g) => (float[T,4096] y) { y = Accumulate(a, g) }", false},
    {"GradientNorm", "(float[T,4096] a) => (double[] n) { n = GradientNorm(a) }", false},
    {"AdamW",
     "(float[T,4096] p, float[T,4096] g, float[T,4096] m, float[T,4096] v, double[] lr, int64[] t, float[] c)"
     " => (float[T,4096] q) { q, n, w = AdamW(p, g, m, v, lr, t, c) }",
     false},
    {"Cast to bfloat16", "(float[T,4096] a) => (bfloat16[T,4096] y) { y = Cast<to = 16>(a) }", false},
};

std::string TextOf(const TimedOp& op, int64_t tokens, const char* activation) {
  std::string text = StrCat("graph timed ", op.graph);
  const auto replace = [&](const std::string& what, const std::string& by) {
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
      text.replace(at, what.size(), by);
  };
  replace("[T", StrCat("[", tokens));
  replace(",T,", StrCat(",", tokens, ","));
  replace("A[", StrCat(activation, "["));
  return text;
}

// Seconds of one launch: the shortest of three batches in a row.
RowTiming Time(Device& device, const std::string& name, const std::string& text, int repeats) {
  const auto graph = ParseText(text);
  NodeMemory memory(device, *graph->nodes().front());
  RowTiming timing{name, memory.bytes(), 1e9};
  for (int batch = 0; batch < 3; ++batch) {
    memory.Launch();
    device.CheckLaunch();
    device.Synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < repeats; ++run) memory.Launch();
    device.Synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    timing.seconds = std::min(timing.seconds, took.count() / repeats);
  }
  return timing;
}

}  // namespace

std::vector<RowTiming> TimeRowOps(const RowBenchOptions& options) {
  const auto device = MakeDevice(options.device);
  std::vector<RowTiming> timings;
  for (const TimedOp& op : kTimed) {
    timings.push_back(Time(*device, op.name, TextOf(op, options.tokens, "float"), options.repeats));
    if (!op.activations || options.device != DeviceKind::kCuda) continue;
    timings.push_back(Time(*device, StrCat(op.name, ", bfloat16"), TextOf(op, options.tokens, "bfloat16"),
                           options.repeats));
  }
  return timings;
}

int BenchRows(const RowBenchOptions& options, std::ostream& out) {
  const auto timings = TimeRowOps(options);
  const double copy = timings.front().BytesPerSecond();
  if (options.json)
    out << "{\"device\": \"" << DeviceName(options.device) << "\", \"tokens\": " << options.tokens
        << ", \"results\": [";
  else
    out << "row ops on " << DeviceName(options.device) << ", " << options.tokens << " tokens\n" << std::fixed;
  for (size_t i = 0; i < timings.size(); ++i) {
    const RowTiming& t = timings[i];
    if (options.json) {
      out << (i ? ", " : "") << "{\"op\": \"" << t.name << "\", \"bytes\": " << t.bytes
          << ", \"ms\": " << t.seconds * 1e3 << ", \"gb_per_s\": " << t.BytesPerSecond() * 1e-9
          << ", \"of_copy\": " << t.BytesPerSecond() / copy << "}";
    } else {
      out << std::left << std::setw(28) << t.name << std::right << std::setprecision(3) << std::setw(10)
          << t.seconds * 1e3 << " ms" << std::setprecision(0) << std::setw(8) << t.BytesPerSecond() * 1e-9
          << " GB/s" << std::setprecision(2) << std::setw(7) << t.BytesPerSecond() / copy << " of a copy\n";
    }
  }
  if (options.json) out << "]}\n";
  return 0;
}

}  // namespace weir
