#include "bench/checkpoint_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <random>

#include "backend/plan.h"
#include "graph/error.h"
#include "graph/text.h"

namespace weir {
namespace {

// h<l+1> = products of h<l>; backward goes through the layers from the last, reads each h<l>, and adds to one gradient.
class StepText {
 public:
  StepText(const CheckpointBenchOptions& o, bool stash) : o_(o), stash_(stash) {}

  std::string Write() {
    const std::string type(DTypeName(o_.dtype)), rows = StrCat(type, "[", o_.tokens, ",", o_.hidden, "] "), square = StrCat("[", o_.hidden, ",", o_.hidden, "] ");
    for (int64_t l = 0; l < o_.layers; ++l) Forward(l);
    if (stash_) Line(StrCat("s", o_.layers - 1, " = StashWait<event = ", o_.layers - 1, ">(h", o_.layers - 1, ", t", o_.layers - 1, ")"));
    text_ += "  phase backward\n";
    std::string dy = StrCat("h", o_.layers);
    if (stash_) Fetch(o_.layers - 1);
    for (int64_t l = o_.layers; l-- > 0;) dy = Backward(l, dy);
    return StrCat("graph (", rows, "h0, ", type, square, "w) => (float", square, gradient_, ")\ngradient float", square, "acc\n{\n", text_, "}");
  }

 private:
  void Line(const std::string& line) { text_ += "  " + line + "\n"; }

  // The layer's input leaves while the layer is at work.
  void Forward(int64_t l) {
    if (stash_) Line(StrCat("t", l, " = StashStart<event = ", l, ">(h", l, ")"));
    std::string x = StrCat("h", l);
    for (int64_t p = 0; p < o_.products; ++p) {
      const std::string y = p + 1 == o_.products ? StrCat("h", l + 1) : StrCat("y", l, ".", p);
      Line(StrCat("\"", y, "\" = Linear(\"", x, "\", w)"));
      x = y;
    }
    if (stash_ && l > 0) Line(StrCat("s", l - 1, " = StashWait<event = ", l - 1, ">(h", l - 1, ", t", l - 1, ")"));
  }

  void Fetch(int64_t l) { Line(StrCat("f", l, " = FetchStart<event = ", o_.layers + l, ">(s", l, ")")); }

  std::string Backward(int64_t l, std::string dy) {
    std::string x = StrCat("h", l);
    if (stash_) {
      x = StrCat("x", l);
      if (l > 0) Fetch(l - 1);
      Line(StrCat(x, " = FetchWait<event = ", o_.layers + l, ">(f", l, ", s", l, ")"));
    }
    for (int64_t p = 0; p < o_.products; ++p) {
      const std::string gradient = StrCat("g", l, ".", p), dx = StrCat("d", l, ".", p);
      Line(StrCat("\"", gradient, "\" = LinearWeightGradient(\"", x, "\", \"", dy, "\", \"", gradient_, "\")"));
      Line(StrCat("\"", dx, "\" = MatMul(\"", dy, "\", w)"));
      gradient_ = gradient;
      dy = dx;
    }
    return dy;
  }

  const CheckpointBenchOptions& o_;
  const bool stash_;
  std::string text_ = "  phase forward\n", gradient_ = "acc";
};

struct Timing {
  double seconds = 0;
  int64_t device_bytes = 0, host_bytes = 0;
  std::vector<float> gradient;
};

// Normal values. A chain of products with a weight of this scale neither overflows nor vanishes.
constexpr float kScale = 0.95f;
void FillNormal(const Executor& reader, Executor& executor, const Value& value, float scale) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> block(1 << 22);  // all of the weight: repeated rows would make it grow
  std::ranges::generate(block, [&] { return normal(random); });
  const std::vector<std::byte> encoded = EncodeFloats(block, value.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(reader.TensorOf(value).size_bytes()));
  for (size_t at = 0; at < bytes.size(); at += encoded.size()) std::memcpy(&bytes[at], encoded.data(), std::min(encoded.size(), bytes.size() - at));
  executor.Write(value, bytes.data(), std::ssize(bytes));
}

Timing Measure(const CheckpointBenchOptions& o, bool stash, const std::shared_ptr<Device>& device, Communicator* world) {
  const auto graph = ParseText(StepText(o, stash).Write());
  const Plan plan = MakePlan(*graph, device->kind());
  Executor executor(plan, {.device = device});
  FillNormal(executor, executor, *graph->FindValue("h0"), 1);
  FillNormal(executor, executor, *graph->FindValue("w"), kScale / std::sqrt(static_cast<float>(o.hidden)));
  const std::vector<float> zeros(static_cast<size_t>(o.hidden * o.hidden));
  executor.Write(*graph->FindValue("acc"), zeros.data(), static_cast<int64_t>(zeros.size() * sizeof(float)));
  Timing timing{.device_bytes = plan.arena_bytes, .host_bytes = plan.host_arena_bytes, .gradient = {}};
  std::vector<double> seconds;
  for (int run = 0; run <= o.repeats; ++run) {
    if (world != nullptr) world->host().Barrier({"BenchCheckpoint", "start"});
    const auto start = std::chrono::steady_clock::now();
    executor.Run(Phase::kForward);
    executor.Run(Phase::kBackward);
    device->Synchronize();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (run > 0) continue;
    timing.gradient.resize(static_cast<size_t>(o.hidden * o.hidden));
    executor.Read(*graph->outputs[0], timing.gradient.data(), static_cast<int64_t>(timing.gradient.size() * sizeof(float)));
  }
  seconds.erase(seconds.begin());
  std::ranges::sort(seconds);
  timing.seconds = seconds[seconds.size() / 2];
  if (world != nullptr) timing.seconds = std::ranges::max(world->host().GatherValues(timing.seconds, {"BenchCheckpoint", "seconds"}));
  return timing;
}

}  // namespace

int BenchCheckpoint(const CheckpointBenchOptions& o, const std::shared_ptr<Device>& device, Communicator* world, std::ostream& out) {
  const Timing kept = Measure(o, false, device, world), stashed = Measure(o, true, device, world);
  const bool same = std::memcmp(kept.gradient.data(), stashed.gradient.data(), kept.gradient.size() * sizeof(float)) == 0;
  const bool finite = std::ranges::all_of(kept.gradient, [](float v) { return std::isfinite(v); });
  WEIR_CHECK(finite, ErrorCode::kInternal, "bench checkpoint: the gradient is not finite, so it shows nothing");
  if (world != nullptr && world->rank() != 0) return same ? 0 : 1;
  const int64_t boundary = BytesOf(o.dtype, o.tokens * o.hidden), ranks = world == nullptr ? 1 : world->size();
  const double flops = 6.0 * static_cast<double>(o.layers * o.products * o.tokens) * static_cast<double>(o.hidden) * static_cast<double>(o.hidden);
  const double share = stashed.seconds / kept.seconds - 1;
  if (o.json) {
    out << nlohmann::json{{"device", DeviceName(device->kind())}, {"dtype", DTypeName(o.dtype)}, {"ranks", ranks}, {"layers", o.layers}, {"tokens", o.tokens},
                          {"hidden", o.hidden}, {"products", o.products}, {"boundary_bytes", boundary}, {"ms", stashed.seconds * 1e3}, {"kept_ms", kept.seconds * 1e3},
                          {"share_of_step", share}, {"tflops", flops / stashed.seconds * 1e-12}, {"planned_bytes", stashed.device_bytes},
                          {"kept_planned_bytes", kept.device_bytes}, {"host_bytes", stashed.host_bytes}}.dump() << "\n";
  } else {
    const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
    const auto row = [&](const char* name, const Timing& t) {
      out << std::setw(10) << t.seconds * 1e3 << " ms  " << std::setw(7) << flops / t.seconds * 1e-12 << " TFLOP/s  " << gib(t.device_bytes) << " GiB on the device, "
          << gib(t.host_bytes) << " GiB in host memory  " << name << "\n";
    };
    out << std::fixed << std::setprecision(2) << o.layers << " boundaries of " << o.tokens << " x " << o.hidden << " " << DTypeName(o.dtype) << " on each of " << ranks
        << " x " << DeviceName(device->kind()) << ", " << o.products << " products a layer\n";
    row("kept", kept);
    row("stashed and fetched", stashed);
    out << "cost " << 100 * share << " % of a step\n";
  }
  if (!same) out << "stashed and kept boundaries gave different gradients\n";
  return same ? 0 : 1;
}

}  // namespace weir
