// weir bench machine: rates of products, memories and links.
#include "cli/bench_machine.h"

#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include "backend/cuda_communicator.h"
#include "bench/machine_bench.h"
#include "cli/outputs.h"
#include "cli/rank_flags.h"
#include "graph/layout.h"

namespace weir {
namespace {

struct Flags {
  std::string device, precision, out;
  int threads = 0;
  MachineBenchOptions bench;
};

Ending BenchRank(const Flags& flags, const Placement& place, Communicator* host) {
  const std::shared_ptr<Device> device = place.kind == DeviceKind::kCuda ? MakeCudaDevice(place.ordinal) : MakeCpuDevice();
  std::unique_ptr<Communicator> gpus;
  if (host != nullptr) host->SetLayout({.world = host->size()});
  if (host != nullptr && place.kind == DeviceKind::kCuda) gpus = MakeNcclCommunicator(*host, *device, place.timeout);
  const auto rates = MeasureMachine(flags.bench, *device, gpus ? gpus.get() : host);
  if (host != nullptr && host->rank() != 0) return {};
  nlohmann::ordered_json profile;
  for (const auto& [name, rate] : rates) {
    profile[name] = rate;
    const bool flops = name.ends_with("flops");
    char line[100];
    std::snprintf(line, sizeof(line), "%-26s%11.3f %s\n", name.c_str(), rate * (flops ? 1e-12 : 1e-9), flops ? "TFLOP/s" : "GB/s");
    std::cerr << line;
  }
  if (flags.out.empty()) {
    std::cout << profile.dump(2) << "\n";
  } else {
    WriteText(flags.out, profile.dump(2) + "\n");
  }
  return {};
}

// Seconds, not minutes, on a CPU.
void MakeSmall(MachineBenchOptions& bench) {
  bench = {.dtype = DType::kFloat32, .gemm = {512, 512, 512}, .attention = {512, 4, 4, 64}, .experts = {512, 8, 2, 128, 128},
           .bytes = int64_t{1} << 26, .repeats = 3};
}

}  // namespace

int BenchMachine(int argc, const char* const* argv) {
  Flags flags;
  RankFlags ranks;
  po::options_description main("Bench of the machine: a profile for weir plan --machine, of the slowest rank when all work at once");
  main.add_options()
      ("device", po::value<std::string>(&flags.device)->default_value("cpu"), "cpu or cuda")
      ("precision", po::value<std::string>(&flags.precision)->default_value("bfloat16"), "of products on cuda: float32 or bfloat16")
      ("out", po::value<std::string>(&flags.out), "JSON file; else it is printed")
      ("threads", po::value<int>(&flags.threads)->default_value(0), "CPU threads of a rank; 0 = its share of this process's cores");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir bench machine [--device cuda --ranks N --out FILE.json]", {main, ranks.Options()}, {}, values)) {
    return kExitOk;
  }
  if (flags.precision != "float32" && flags.precision != "bfloat16") throw UsageError("--precision must be float32 or bfloat16");
  CheckThreads(flags.threads);
  ranks.Check();
  if (flags.precision == "float32") flags.bench.dtype = DType::kFloat32;
  if (flags.device == "cpu") MakeSmall(flags.bench);
  const RankEnvironment environment = PlaceAmongRanks(ranks);
  std::vector<std::string> arguments = {"weir", "bench"};
  arguments.insert(arguments.end(), argv, argv + argc);
  if (const auto ended = StartRanks(ranks, environment, std::move(arguments))) return *ended;
  SetRankThreads(flags.threads, environment);
  return RunAsRank(ranks, environment, flags.device, "weir bench machine",
                   [&](const Placement& place, Communicator* host) { return BenchRank(flags, place, host); });
}

}  // namespace weir
