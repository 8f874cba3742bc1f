#include "bench/machine_bench.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "bench/heavy_bench.h"
#include "bench/node_memory.h"
#include "graph/error.h"
#include "graph/text.h"

namespace weir {
namespace {

using Rates = std::vector<std::pair<std::string, double>>;

class Machine {
 public:
  Machine(const MachineBenchOptions& options, Device& device, Communicator* world) : o_(options), device_(device), world_(world) {}

  Rates Measure() {
    Products("gemm", o_.gemm, {{"forward", "gemm_flops"}});
    Products("attention", o_.attention, {{"forward", "attention_flops"}, {"backward", "attention_backward_flops"}});
    Products("experts", o_.experts, {{"forward", "experts_flops"}, {"backward", "experts_backward_flops"}});
    Memory();
    HostLink();
    if (world_ != nullptr) Link();
    return std::move(rates_);
  }

 private:
  // The slowest rank's.
  void Note(const std::string& name, double rate) {
    if (world_ != nullptr) {
      const auto all = world_->host().GatherValues(rate, {"BenchMachine", name});
      rate = *std::min_element(all.begin(), all.end());
    }
    rates_.emplace_back(name, rate);
  }
  void Meet() {
    if (world_ != nullptr) world_->host().Barrier({"BenchMachine", "start"});
  }

  void Products(const std::string& subject, const std::vector<int64_t>& shape, const std::vector<std::pair<std::string, std::string>>& names) {
    Meet();
    const auto timings = TimeHeavy(device_, {.subject = subject, .dtype = o_.dtype, .shapes = {}, .peer = "", .repeats = o_.repeats}, shape);
    for (const HeavyTiming& timing : timings) {
      for (const auto& [node, rate] : names) {
        if (timing.name == node) Note(rate, timing.flops / timing.seconds);
      }
    }
  }

  // A copy, read and written.
  void Memory() {
    const auto graph = ParseText(StrCat("graph timed (float[", o_.bytes / 4, "] x) => (float[", o_.bytes / 4, "] y) { y = Identity(x) }"));
    Meet();
    NodeMemory memory(device_, *graph->nodes().front());
    Note("memory_bandwidth", memory.bytes() / memory.Time(o_.repeats, 3));
  }

  // Seconds of one run of `work`, many in a row.
  double Seconds(const std::function<void()>& work) {
    work();
    device_.Synchronize();
    Meet();
    const auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < o_.repeats; ++run) work();
    device_.Synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / o_.repeats;
  }

  // Both ways at once, as moments and boundaries travel.
  void HostLink() {
    std::byte *near[] = {device_.Allocate(o_.bytes), device_.Allocate(o_.bytes)};
    std::byte *far[] = {device_.AllocateHost(o_.bytes), device_.AllocateHost(o_.bytes)};
    CopyEngine& copies = device_.stream()->copies();
    const double seconds = Seconds([&] {
      copies.Start(0, CopyEngine::Direction::kToDevice, near[0], far[0], o_.bytes);
      copies.Start(1, CopyEngine::Direction::kToHost, far[1], near[1], o_.bytes);
    });
    for (const int i : {0, 1}) {
      device_.Free(near[i], o_.bytes);
      device_.FreeHost(far[i], o_.bytes);
    }
    for (const char* way : {"h2d", "d2h"}) Note(way, static_cast<double>(o_.bytes) / seconds);
  }

  // Everyone to everyone, each way.
  void Link() {
    const int64_t ranks = world_->size(), part = o_.bytes / ranks;
    std::byte* memory = device_.Allocate(2 * part * ranks);
    std::vector<Communicator::Outgoing> send;
    std::vector<Communicator::Incoming> receive;
    for (int64_t j = 0; j < ranks; ++j) {
      if (j == world_->rank()) continue;
      send.push_back({j, {memory + j * part, static_cast<size_t>(part)}});
      receive.push_back({j, {memory + (ranks + j) * part, static_cast<size_t>(part)}});
    }
    const double seconds = Seconds([&] { world_->Wait(world_->StartExchange(send, receive, {"BenchMachine", "link"})); });
    device_.Free(memory, 2 * part * ranks);
    Note("link", static_cast<double>(part * (ranks - 1)) / seconds);
  }

  const MachineBenchOptions& o_;
  Device& device_;
  Communicator* const world_;
  Rates rates_;
};

}  // namespace

Rates MeasureMachine(const MachineBenchOptions& options, Device& device, Communicator* world) {
  return Machine(options, device, world).Measure();
}

}  // namespace weir
