// What streams, recomputes or offloads changes no bit on a GPU: losses, gradients, parameters and moments after three steps of
// two micro-batches, beside the same run with nothing of it.
#include <functional>

#include "backend/device.h"
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

constexpr int64_t kRows = 2, kLength = 13;

RunBits BitsOn(DeviceKind device, const Graph& graph, const TrainingOptions& options) {
  PassManager passes;
  TrainingSession session(graph, options, kRows, kLength, {}, passes, device);
  return BitsOfRun(session);
}

struct Knobs {
  const char* name;
  std::function<void(TrainingOptions&)> set;
};

StreamDispatchOptions Chunks(int64_t tokens, int64_t most) {
  return {.chunk_tokens = tokens, .max_chunks = most, .lambda = 1, .alpha = 1.1, .min_rows = 1, .max_foreign = 2};
}

// A layer boundary takes `boundary` bytes.
std::vector<Knobs> Sweep(int64_t boundary) {
  const auto recompute = [](TrainingOptions& o, const char* keep, int64_t budget) {
    o.recompute = "layer";
    o.keep = keep;
    o.host_budget = budget;
  };
  constexpr int64_t kAll = int64_t{1} << 30;
  return {
      {"again", [](TrainingOptions&) {}},
      {"one chunk", [](TrainingOptions& o) { o.stream_dispatch = Chunks(0, 0); }},
      {"chunks of a token", [](TrainingOptions& o) { o.stream_dispatch = Chunks(1, 0); }},
      {"three chunks", [](TrainingOptions& o) { o.stream_dispatch = Chunks(1, 3); }},
      {"chunks of 7", [](TrainingOptions& o) { o.stream_dispatch = Chunks(7, 0); }},
      {"recompute", [=](TrainingOptions& o) { recompute(o, "none", 0); }},
      {"recompute, attention kept", [=](TrainingOptions& o) { recompute(o, "attention", 0); }},
      {"a boundary on the host", [=](TrainingOptions& o) { recompute(o, "none", boundary); }},
      {"all boundaries on the host", [=](TrainingOptions& o) { recompute(o, "none", kAll); }},
      {"all boundaries on the host, attention kept", [=](TrainingOptions& o) { recompute(o, "attention", kAll); }},
      {"moments through one slot", [](TrainingOptions& o) { o.offload = {.bucket = 77, .slots = 1, .resident = 0}; }},
      {"moments through three slots", [](TrainingOptions& o) { o.offload = {.bucket = 1000, .slots = 3, .resident = 0}; }},
      {"some moments resident", [](TrainingOptions& o) { o.offload = {.bucket = 4096, .slots = 2, .resident = 20000}; }},
      {"everything",
       [=](TrainingOptions& o) {
         recompute(o, "attention", boundary);
         o.stream_dispatch = Chunks(3, 0);
         o.offload = {.bucket = 1000, .slots = 2, .resident = 5000};
       }},
  };
}

std::vector<Knobs> Strips() {
  std::vector<Knobs> strips;
  for (const auto& [name, columns] : {std::pair{"strips of 64", int64_t{64}}, {"strips of 100", int64_t{100}}, {"one strip", int64_t{1} << 20}}) {
    strips.push_back({name, [columns](TrainingOptions& o) { o.strip = columns; }});
  }
  strips.push_back({"strips and everything", [](TrainingOptions& o) {
                      o.strip = 64;
                      o.recompute = "layer";
                      o.host_budget = int64_t{1} << 30;
                      o.stream_dispatch = Chunks(5, 0);
                      o.offload = {.bucket = 1000, .slots = 2, .resident = 0};
                    }});
  return strips;
}

// Units of 5 rows and 4 leaves cut nearly every expert's rows.
TrainingOptions Definition(const char* precision) {
  TrainingOptions options;
  options.precision = precision;
  options.deterministic = true;
  options.leaves = 4;
  options.unit_rows = 5;
  return options;
}

int64_t BoundaryBytes(const Graph& graph, const char* precision) {
  for (const auto& value : graph.values()) {
    if (value->parameter != nullptr && value->name == "model.embed_tokens.weight") {
      return kRows * kLength * value->shape[1].Constant() * (std::string(precision) == "bfloat16" ? 2 : 4);
    }
  }
  throw Error(ErrorCode::kInternal, "no token embedding");
}

void ExpectNoBitChanged(DeviceKind device, const std::string& family, const char* precision, const std::vector<Knobs>& sweep) {
  const auto graph = LoadFamily(family);
  const RunBits twin = BitsOn(device, *graph, Definition(precision));
  for (const Knobs& knobs : sweep) {
    TrainingOptions options = Definition(precision);
    knobs.set(options);
    ExpectSameBits(BitsOn(device, *graph, options), twin, StrCat(family, ", ", precision, ", ", knobs.name));
  }
}

class KnobSweep : public testing::TestWithParam<std::tuple<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(All, KnobSweep, testing::Combine(testing::ValuesIn(kFamilies), testing::Values("float32", "bfloat16")),
                         [](const auto& info) { return StrCat(std::get<0>(info.param), "_", std::get<1>(info.param)); });

TEST_P(KnobSweep, ChangesNoBitOnTheGpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto& [family, precision] = GetParam();
  ExpectNoBitChanged(DeviceKind::kCuda, family, precision, Sweep(BoundaryBytes(*LoadFamily(family), precision)));
}

TEST_P(KnobSweep, StripsChangeNoBitOnTheGpu) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto& [family, precision] = GetParam();
  ExpectNoBitChanged(DeviceKind::kCuda, family, precision, Strips());
}

// The list itself, where there is no GPU.
TEST(KnobSweepOnTheCpu, ChangesNoBit) {
  const auto graph = LoadFamily("olmoe");
  auto all = Sweep(BoundaryBytes(*graph, "float32"));
  for (const Knobs& strip : Strips()) all.push_back(strip);
  ExpectNoBitChanged(DeviceKind::kCpu, "olmoe", "float32", all);
}

// Losses of 50 steps beside the CPU's, which tests/optim holds against PyTorch's.
std::vector<double> Losses(DeviceKind device, const Graph& graph) {
  PassManager passes;
  TrainingSession session(graph, {}, 4, 16, {}, passes, device);
  std::vector<double> losses;
  for (int64_t step = 1; step <= 50; ++step) {
    TrainingSession::MicroBatch batch;
    for (int64_t i = 0; i < session.batch() * session.sequence(); ++i) {
      const int64_t token = (i * 37 + step % 5 * 11) % session.vocabulary();
      batch.input_ids.push_back(token);
      batch.labels.push_back(i % 6 == 0 ? -100 : (token * 7 + 3) % session.vocabulary());
    }
    losses.push_back(session.ComputeGradients({&batch, 1}).loss);
    session.Update(1e-3, step);
  }
  return losses;
}

TEST_P(EveryExport, FiftyStepsOnTheGpuAreTheCpus) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto graph = LoadFamily(GetParam());
  const auto cpu = Losses(DeviceKind::kCpu, *graph), gpu = Losses(DeviceKind::kCuda, *graph);
  EXPECT_LT(cpu.back(), 0.9 * cpu.front());
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], 1e-5 * cpu[i]) << "step " << i + 1;
}

}  // namespace
}  // namespace weir
