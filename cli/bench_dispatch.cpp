// weir bench dispatch: experts over ranks on synthetic routes.
#include "cli/bench_dispatch.h"

#include <iostream>
#include <sstream>

#include "backend/cuda_communicator.h"
#include "bench/dispatch_bench.h"
#include "cli/dispatch_flags.h"
#include "cli/load_model.h"
#include "cli/rank_flags.h"
#include "graph/error.h"
#include "graph/layout.h"

namespace weir {
namespace {

// "80" or "80:4".
void ParseSkew(const std::string& text, DispatchBenchOptions& bench) {
  std::istringstream in(text);
  char colon = ':';
  in >> bench.skew;
  if (in && !in.eof()) in >> colon >> bench.hot_experts;
  const bool good = in && in.peek() == std::istringstream::traits_type::eof() && colon == ':' && bench.skew >= 0 && bench.skew <= 100 &&
                    bench.hot_experts >= 1 && bench.hot_experts <= bench.experts;
  if (!good) throw UsageError("--skew " + text + " is not PERCENT[:EXPERTS], 0..100 percent of the routes to 1.." + std::to_string(bench.experts) + " experts");
}

void CheckSizes(const DispatchBenchOptions& bench) {
  for (const int64_t size : {bench.tokens, bench.hidden, bench.expert_width, bench.top_k, bench.leaves, bench.unit_rows}) {
    if (size < 1) throw UsageError("--tokens, --hidden, --expert-width, --top-k, --leaves and --unit-rows must be positive");
  }
  if (bench.experts < bench.expert_parallel) throw UsageError("--experts must be at least --expert-parallel");
  if (bench.top_k > bench.experts) throw UsageError(StrCat("--top-k ", bench.top_k, " must not exceed --experts ", bench.experts, ": a token's routes go to different experts"));
  if (bench.repeats < 1) throw UsageError("--repeats must be positive");
}

Ending BenchRank(const DispatchBenchOptions& bench, const Placement& place, Communicator* host) {
  const std::shared_ptr<Device> device = place.kind == DeviceKind::kCuda ? MakeCudaDevice(place.ordinal) : MakeCpuDevice();
  std::unique_ptr<Communicator> gpus;
  Communicator* world = host;
  if (host != nullptr) host->SetLayout({.world = host->size(), .expert_parallel = bench.expert_parallel});
  if (host != nullptr && place.kind == DeviceKind::kCuda) {
    gpus = MakeNcclCommunicator(*host, *device, place.timeout);
    world = gpus.get();
  }
  const auto timings = TimeDispatch(bench, device, world);
  if (host == nullptr || host->rank() == 0) PrintDispatch(bench, timings, place.kind, host == nullptr ? 1 : host->size(), std::cout);
  return {};
}

}  // namespace

int BenchDispatch(int argc, const char* const* argv) {
  DispatchBenchOptions bench;
  RankFlags ranks;
  DispatchFlags dispatch;
  dispatch.stream.max_foreign = bench.max_foreign;
  std::string device, skew, precision;
  int threads = 0;
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  po::options_description main("Bench of one layer of experts: plain (all at home, one chunk), least-loaded in one chunk, pipelined");
  main.add_options()
      ("device", po::value<std::string>(&device)->default_value("cpu"), "cpu or cuda")
      ("precision", po::value<std::string>(&precision)->default_value("bfloat16"), "on cuda: float32 or bfloat16")
      ("tokens", integer(bench.tokens), "tokens of a rank")
      ("hidden", integer(bench.hidden), "width of a token")
      ("expert-width", integer(bench.expert_width), "width of an expert")
      ("experts", integer(bench.experts), "experts of all ranks")
      ("top-k", integer(bench.top_k), "routes of a token")
      ("skew", po::value<std::string>(&skew)->default_value("0"), "PERCENT[:EXPERTS]: percent of the routes that go to the first 4 (or so many) experts; 0 = all alike")
      ("leaves", integer(bench.leaves), "leaves of a rank's tokens, which chunks are runs of")
      ("unit-rows", integer(bench.unit_rows), "rows of a weight gradient's unit")
      ("repeats", po::value<int>(&bench.repeats)->default_value(bench.repeats), "timed runs, fewer when they take over 10 s; the median is printed")
      ("threads", po::value<int>(&threads)->default_value(0), "CPU threads of a rank; 0 = its share of this process's cores")
      ("json", po::bool_switch(&bench.json), "print JSON");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir bench dispatch [--ranks N --expert-parallel N --device cuda --skew 80:4 --chunk-tokens N]",
                    {main, ranks.Options(), dispatch.Options()}, {}, values)) {
    return kExitOk;
  }
  ranks.Check();
  const RankEnvironment environment = PlaceAmongRanks(ranks);
  dispatch.Check(WorldSize(ranks, environment));
  bench.expert_parallel = dispatch.expert_parallel;
  bench.chunk_tokens = dispatch.stream.chunk_tokens > 0 ? dispatch.stream.chunk_tokens : DivCeil(bench.tokens, 8);
  bench.max_chunks = dispatch.stream.max_chunks;
  bench.lambda = dispatch.stream.lambda;
  bench.alpha = dispatch.stream.alpha;
  bench.min_rows = dispatch.stream.min_rows;
  bench.max_foreign = dispatch.stream.max_foreign;
  if (precision != "float32" && precision != "bfloat16") throw UsageError("--precision must be float32 or bfloat16");
  bench.dtype = precision == "float32" || device == "cpu" ? DType::kFloat32 : DType::kBFloat16;
  CheckThreads(threads);
  CheckSizes(bench);
  ParseSkew(skew, bench);
  std::vector<std::string> arguments = {"weir", "bench"};
  arguments.insert(arguments.end(), argv, argv + argc);
  if (const auto ended = StartRanks(ranks, environment, std::move(arguments))) return *ended;
  SetRankThreads(threads, environment);
  return RunAsRank(ranks, environment, device, "weir bench dispatch",
                   [&](const Placement& place, Communicator* host) { return BenchRank(bench, place, host); });
}

}  // namespace weir
