#include "cli/bench_streams.h"

#include <iostream>

#include "backend/cuda_communicator.h"
#include "bench/checkpoint_bench.h"
#include "bench/optimizer_bench.h"
#include "cli/options.h"
#include "cli/rank_flags.h"
#include "cli/sizes.h"

namespace weir {
namespace {

// What both take.
struct Common {
  RankFlags ranks;
  std::string device;
  int threads = 0;

  void Add(po::options_description& main, int& repeats, bool& json) {
    main.add_options()
        ("device", po::value<std::string>(&device)->default_value("cpu"), "cpu or cuda")
        ("repeats", po::value<int>(&repeats)->default_value(repeats), "timed steps; the median is printed")
        ("threads", po::value<int>(&threads)->default_value(0), "CPU threads of a rank; 0 = its share of this process's cores")
        ("json", po::bool_switch(&json), "print JSON");
  }
};

using Bench = std::function<int(const std::shared_ptr<Device>& device, Communicator* world)>;

int RunOnRanks(Common& common, int argc, const char* const* argv, const std::string& name, const std::string& differs, const Bench& bench) {
  CheckThreads(common.threads);
  common.ranks.Check();
  const RankEnvironment environment = PlaceAmongRanks(common.ranks);
  std::vector<std::string> arguments = {"weir", "bench"};
  arguments.insert(arguments.end(), argv, argv + argc);
  if (const auto ended = StartRanks(common.ranks, environment, std::move(arguments))) return *ended;
  SetRankThreads(common.threads, environment);
  return RunAsRank(common.ranks, environment, common.device, name, [&](const Placement& place, Communicator* world) -> Ending {
    const std::shared_ptr<Device> device = place.kind == DeviceKind::kCuda ? MakeCudaDevice(place.ordinal) : MakeCpuDevice();
    const int code = bench(device, world);
    return {code, code == 0 ? "" : differs};
  });
}

po::typed_value<int64_t>* Integer(int64_t& target) { return po::value<int64_t>(&target)->default_value(target); }

}  // namespace

int BenchOptimizerCommand(int argc, const char* const* argv) {
  OptimizerBenchOptions options;
  Common common;
  po::options_description main("Bench of AdamW alone: state on the device, and streamed from host memory beside its bytes' copies");
  main.add_options()
      ("parameters", po::value<int64_t>(&options.parameters)->default_value(0), "of each rank; 0 = 2^30 with --device cuda, 2^24 on a CPU")
      ("tensors", Integer(options.tensors), "matrices that they are in")
      ("bucket", Integer(options.offload.bucket), "elements that travel together")
      ("slots", Integer(options.offload.slots), "buckets on the device at a time")
      ("resident", po::value<std::string>()->default_value("0"), "bytes of state that stay on the device, such as 4GiB")
      ("peer", po::value<std::string>(&options.peer), "bench/peers/optimizer.py: PyTorch's AdamW with its state in host memory, as a child of this process");
  common.Add(main, options.repeats, options.json);
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir bench optimizer [--parameters N --bucket N --slots N --device cuda --ranks N]", {main, common.ranks.Options()}, {}, values)) {
    return kExitOk;
  }
  options.offload.resident = ParseBytes(values["resident"].as<std::string>(), "--resident");
  if (options.parameters == 0) options.parameters = int64_t{1} << (common.device == "cuda" ? 30 : 24);
  if (options.tensors < 1 || options.parameters < options.tensors || options.offload.bucket < 1 || options.offload.slots < 1 || options.repeats < 1) {
    throw UsageError("--parameters, --tensors, --bucket, --slots and --repeats must be positive, --parameters at least --tensors");
  }
  return RunOnRanks(common, argc, argv, "weir bench optimizer", "streamed and resident state gave different weights, or the peer failed",
                    [&](const std::shared_ptr<Device>& device, Communicator* world) { return BenchOptimizer(options, device, world, std::cout); });
}

int BenchCheckpointCommand(int argc, const char* const* argv) {
  CheckpointBenchOptions options;
  Common common;
  po::options_description main("Bench of layer boundaries in host memory: products alone, and with every layer's input stashed and fetched");
  main.add_options()
      ("layers", Integer(options.layers), "boundaries")
      ("tokens", Integer(options.tokens), "of each rank")
      ("hidden", Integer(options.hidden), "channels of a token")
      ("products", Integer(options.products), "of tokens x hidden x hidden in a layer's forward pass");
  common.Add(main, options.repeats, options.json);
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir bench checkpoint [--layers N --tokens N --hidden N --products N --device cuda --ranks N]", {main, common.ranks.Options()}, {},
                    values)) {
    return kExitOk;
  }
  if (options.layers < 1 || options.tokens < 1 || options.hidden < 1 || options.products < 1 || options.repeats < 1) {
    throw UsageError("--layers, --tokens, --hidden, --products and --repeats must be positive");
  }
  if (common.device != "cuda") options.dtype = DType::kFloat32;
  return RunOnRanks(common, argc, argv, "weir bench checkpoint", "stashed and kept boundaries gave different gradients",
                    [&](const std::shared_ptr<Device>& device, Communicator* world) { return BenchCheckpoint(options, device, world, std::cout); });
}

}  // namespace weir
