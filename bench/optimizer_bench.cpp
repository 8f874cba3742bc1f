#include "bench/optimizer_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iomanip>
#include <nlohmann/json.hpp>

#include "backend/plan.h"
#include "bench/peer_lines.h"
#include "graph/error.h"
#include "graph/text.h"

namespace weir {
namespace {

// Parameters as a training step in bfloat16 holds them, and their update.
std::string TextOf(const OptimizerBenchOptions& o) {
  std::string leaves, nodes;
  for (int64_t i = 0; i < o.tensors; ++i) {
    const std::string p = StrCat("p", i), dims = StrCat("[", o.parameters / o.tensors, "] ", p);
    leaves += StrCat("parameter bfloat16", dims, "\ngradient float", dims, ".grad\nstate float", dims, ".m\nstate float", dims, ".v\nstate uint16", dims, ".low\n");
    nodes += StrCat("  ", p, ".u, ", p, ".um, ", p, ".uv, ", p, ".ul = AdamW<weight_decay = 0.1>(", p, ", ", p, ".grad, ", p, ".m, ", p,
                    ".v, learning_rate, step, clip, ", p, ".low)\n");
  }
  return StrCat("graph (double[] learning_rate, int64[] step, float[] clip) => ()\n", leaves, "{\n  phase update\n", nodes, "}");
}

struct Timing {
  double seconds = 0;
  int64_t device_bytes = 0, host_bytes = 0;
  std::vector<uint16_t> sample;  // of the weights after the first step
};

class OptimizerBench {
 public:
  OptimizerBench(const OptimizerBenchOptions& options, std::shared_ptr<Device> device, Communicator* world)
      : o_(options), device_(std::move(device)), world_(world) {}

  Timing Measure(bool stream) {
    const auto graph = ParseText(TextOf(o_));
    if (stream) {
      PassContext context;
      StreamOptimizer(o_.offload).Run(*graph, context);
      streamed_ = 0;
      for (const auto& node : graph->nodes()) streamed_ += node->op() == "OffloadStreamAdamW" ? NumElements(ToDims(node->in(1)->shape)) : 0;
    }
    const Plan plan = MakePlan(*graph, device_->kind());
    Executor executor(plan, {.device = device_});
    Fill(*graph, executor);
    Timing timing{.device_bytes = plan.arena_bytes, .host_bytes = plan.host_arena_bytes, .sample = {}};
    timing.seconds = Median([&] {
      executor.Run(Phase::kNorm);
      executor.Run(Phase::kUpdate);
    }, [&] {
      for (int64_t i = 0; i < o_.tensors; ++i) Sample(executor, *graph->FindValue(StrCat("p", i)), timing.sample);
    });
    return timing;
  }

  // The bytes of one streamed step, in copies of a bucket's size.
  double Floor() {
    const int64_t total = 10 * streamed_, chunk = std::min(total, 10 * o_.offload.bucket);
    if (total == 0) return 0;
    std::byte *near[] = {device_->Allocate(chunk), device_->Allocate(chunk)}, *far[] = {device_->AllocateHost(chunk), device_->AllocateHost(chunk)};
    CopyEngine& copies = device_->stream()->copies();
    const double seconds = Median([&] {
      for (int64_t done = 0; done < total; done += chunk) {
        const int64_t bytes = std::min(chunk, total - done);
        copies.Start(0, CopyEngine::Direction::kToDevice, near[0], far[0], bytes);
        copies.Start(1, CopyEngine::Direction::kToHost, far[1], near[1], bytes);
      }
    }, [] {});
    for (const int i : {0, 1}) {
      device_->Free(near[i], chunk);
      device_->FreeHost(far[i], chunk);
    }
    return seconds;
  }

  int64_t streamed() const { return streamed_; }

 private:
  void Fill(const Graph& graph, Executor& executor) const {
    const double rate = 1e-3;
    const int64_t step = 1;
    const float clip = 0.5f;
    executor.Write(*graph.FindValue("learning_rate"), &rate, sizeof(rate));
    executor.Write(*graph.FindValue("step"), &step, sizeof(step));
    executor.Write(*graph.FindValue("clip"), &clip, sizeof(clip));
    std::vector<float> gradient(static_cast<size_t>(o_.parameters / o_.tensors));
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = 1e-3f * static_cast<float>(static_cast<int64_t>(i % 251) - 125);
    for (int64_t i = 0; i < o_.tensors; ++i) {
      executor.Write(*graph.FindValue(StrCat("p", i, ".grad")), gradient.data(), static_cast<int64_t>(gradient.size() * sizeof(float)));
    }
  }

  static void Sample(const Executor& executor, const Value& weight, std::vector<uint16_t>& sample) {
    std::vector<uint16_t> all(static_cast<size_t>(executor.TensorOf(weight).elements()));
    executor.Read(weight, all.data(), static_cast<int64_t>(all.size() * sizeof(uint16_t)));
    for (size_t i = 0; i < all.size(); i += 1 + all.size() / 65536) sample.push_back(all[i]);
  }

  // The slowest rank's median, after one run that `look` sees.
  double Median(const std::function<void()>& work, const std::function<void()>& look) {
    work();
    device_->Synchronize();
    look();
    std::vector<double> seconds;
    for (int run = 0; run < o_.repeats; ++run) {
      if (world_ != nullptr) world_->host().Barrier({"BenchOptimizer", "start"});
      const auto start = std::chrono::steady_clock::now();
      work();
      device_->Synchronize();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::ranges::sort(seconds);
    const double median = seconds[seconds.size() / 2];
    return world_ == nullptr ? median : std::ranges::max(world_->host().GatherValues(median, {"BenchOptimizer", "seconds"}));
  }

  const OptimizerBenchOptions& o_;
  const std::shared_ptr<Device> device_;
  Communicator* const world_;
  int64_t streamed_ = 0;
};

nlohmann::json Report(const OptimizerBenchOptions& o, std::string_view device, int64_t ranks, int64_t streamed, const Timing& twin, const Timing& run,
                      double floor, const std::map<std::string, double>& peer) {
  nlohmann::json json = {{"device", device},         {"ranks", ranks},          {"parameters", o.parameters},   {"bucket", o.offload.bucket},
                         {"slots", o.offload.slots}, {"streamed", streamed},    {"twin_ms", twin.seconds * 1e3}, {"twin_bytes", twin.device_bytes},
                         {"ms", run.seconds * 1e3},  {"planned_bytes", run.device_bytes}, {"host_bytes", run.host_bytes},
                         {"floor_ms", floor * 1e3},  {"gb_per_s_each_way", 10e-9 * static_cast<double>(streamed) / run.seconds}};
  if (floor > 0) json["of_floor"] = run.seconds / floor;
  for (const auto& [name, seconds] : peer) {
    json["peer"][name + "_ms"] = seconds * 1e3;
    json["peer"][name + "_ratio"] = seconds / run.seconds;
  }
  return json;
}

void PrintTable(const nlohmann::json& r, std::ostream& out) {
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  out << std::fixed << std::setprecision(2) << "AdamW of " << r["parameters"] << " parameters on each of " << r["ranks"] << " x "
      << r["device"].get<std::string>() << ", bucket " << r["bucket"] << ", slots " << r["slots"] << ", " << r["streamed"] << " streamed\n"
      << "on the device   " << std::setw(10) << r["twin_ms"].get<double>() << " ms, " << gib(r["twin_bytes"]) << " GiB\n"
      << "streamed        " << std::setw(10) << r["ms"].get<double>() << " ms, " << gib(r["planned_bytes"]) << " GiB, " << gib(r["host_bytes"])
      << " GiB in host memory, " << r["gb_per_s_each_way"].get<double>() << " GB/s each way\n";
  if (r.contains("of_floor")) {
    out << "copies alone    " << std::setw(10) << r["floor_ms"].get<double>() << " ms; streamed takes " << r["of_floor"].get<double>() << " of it\n";
  }
  if (!r.contains("peer")) return;
  for (const auto& [name, value] : r["peer"].items()) out << "peer " << name << " " << value.get<double>() << "\n";
}

}  // namespace

int BenchOptimizer(const OptimizerBenchOptions& options, const std::shared_ptr<Device>& device, Communicator* world, std::ostream& out) {
  OptimizerBench bench(options, device, world);
  const Timing twin = bench.Measure(false), streamed = bench.Measure(true);
  const double floor = bench.Floor();
  bool good = twin.sample == streamed.sample;
  if (world != nullptr) good = std::ranges::min(world->host().GatherValues(good ? 1 : 0, {"BenchOptimizer", "bits"})) == 1;
  if (world != nullptr && world->rank() != 0) return good ? 0 : 1;
  std::map<std::string, double> peer;
  const bool answered = options.peer.empty() || ReadPeer(StrCat("'", options.peer, "' ", DeviceName(device->kind()), " ", options.parameters), peer);
  const auto report = Report(options, DeviceName(device->kind()), world == nullptr ? 1 : world->size(), bench.streamed(), twin, streamed, floor, peer);
  if (options.json) {
    out << report.dump() << "\n";
  } else {
    PrintTable(report, out);
  }
  if (!good) out << "streamed and resident state gave different weights\n";
  return good && answered ? 0 : 1;
}

}  // namespace weir
