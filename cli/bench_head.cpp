// weir bench head --vocab-parallel P: a vocabulary head whole, in strips and spread over ranks.
#include "cli/bench_head.h"

#include <iostream>

#include "backend/cuda_communicator.h"
#include "bench/head_bench.h"
#include "cli/rank_flags.h"
#include "cli/sizes.h"
#include "graph/error.h"

namespace weir {
namespace {

int RunBench(const HeadBenchOptions& options, const Placement& place, Communicator* world) {
  const bool cuda = place.kind == DeviceKind::kCuda;
  const std::shared_ptr<Device> device = cuda ? MakeCudaDevice(place.ordinal) : MakeCpuDevice();
  std::unique_ptr<Communicator> between;
  if (cuda && world != nullptr) between = MakeNcclCommunicator(*world, *device, place.timeout);
  return BenchHead(options, device, between ? between.get() : world, std::cout);
}

}  // namespace

int BenchHeadCommand(int argc, const char* const* argv) {
  HeadBenchOptions options;
  RankFlags ranks;
  std::string device, precision;
  int threads = 0;
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  po::options_description main("Bench of a vocabulary head: logits whole, in strips, and in strips with the weight spread over ranks");
  main.add_options()
      ("tokens", integer(options.tokens), "of each rank")
      ("channels", integer(options.channels), "of a token")
      ("vocabulary", integer(options.vocabulary), "columns of logits")
      ("vocab-parallel", integer(options.vocabulary_parallel), "ranks that hold the weight together; must divide the ranks")
      ("strip", integer(options.strip), "columns of logits alive at a time")
      ("device", po::value<std::string>(&device)->default_value("cpu"), "cpu or cuda")
      ("precision", po::value<std::string>(&precision)->default_value("bfloat16"), "on cuda: float32 or bfloat16")
      ("repeats", po::value<int>(&options.repeats)->default_value(options.repeats), "timed runs; the median is printed")
      ("threads", po::value<int>(&threads)->default_value(0), "CPU threads of a rank; 0 = its share of this process's cores")
      ("json", po::bool_switch(&options.json), "print JSON");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir bench head --vocab-parallel P --ranks R [--tokens N --channels H --vocabulary V --device cuda]",
                    {main, ranks.Options()}, {}, values)) {
    return kExitOk;
  }
  if (options.tokens < 1 || options.channels < 1 || options.vocabulary < 1 || options.strip < 1 || options.repeats < 1) {
    throw UsageError("--tokens, --channels, --vocabulary, --strip and --repeats must be positive");
  }
  CheckThreads(threads);
  if (precision != "float32" && precision != "bfloat16") throw UsageError("--precision must be float32 or bfloat16");
  ranks.Check();
  const RankEnvironment environment = PlaceAmongRanks(ranks);
  options.ranks = WorldSize(ranks, environment);
  if (options.vocabulary_parallel < 1 || options.ranks % options.vocabulary_parallel != 0) {
    throw UsageError(StrCat("--vocab-parallel ", options.vocabulary_parallel, " must divide the ", options.ranks, " ranks"));
  }
  std::vector<std::string> arguments = {"weir", "bench"};
  arguments.insert(arguments.end(), argv, argv + argc);
  if (const auto ended = StartRanks(ranks, environment, std::move(arguments))) return *ended;
  options.dtype = device == "cuda" && precision == "bfloat16" ? DType::kBFloat16 : DType::kFloat32;
  SetRankThreads(threads, environment);
  return RunAsRank(ranks, environment, device, "weir bench head", [&](const Placement& place, Communicator* world) -> Ending {
    const int code = RunBench(options, place, world);
    return {code, code == 0 ? "" : "spread and whole weight gave different bits"};
  });
}

}  // namespace weir
