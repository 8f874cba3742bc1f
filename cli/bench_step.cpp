// weir bench step: whole optimizer steps of a model on random tokens.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "backend/lane_trace.h"
#include "cli/bench_step.h"
#include "cli/dispatch_flags.h"
#include "cli/graph_options.h"
#include "cli/load_model.h"
#include "cli/outputs.h"
#include "cli/rank_flags.h"
#include "cli/sizes.h"
#include "optim/model_flop.h"
#include "optim/training_session.h"

namespace weir {
namespace {

struct StepBench {
  int64_t sequence = 4096, micro_batch = 1, grad_accumulation = 1, steps = 4;
  int threads = 0;
  std::string device, trace;
  bool json = false;
  TrainingOptions training;
  po::variables_map values;
};

std::vector<TrainingSession::MicroBatch> RandomTokens(const StepBench& bench, const TrainingSession& session) {
  std::mt19937_64 random(static_cast<uint64_t>(1 + session.rank()));
  std::uniform_int_distribution<int64_t> id(0, session.vocabulary() - 1);
  std::vector<TrainingSession::MicroBatch> batches(static_cast<size_t>(bench.grad_accumulation));
  for (auto& batch : batches) {
    for (auto* ids : {&batch.input_ids, &batch.labels}) {
      ids->resize(static_cast<size_t>(session.batch() * session.sequence()));
      std::ranges::generate(*ids, [&] { return id(random); });
    }
    if (bench.training.token_weights) {
      batch.weights.resize(batch.labels.size());
      std::ranges::generate(batch.weights, [&] { return static_cast<float>(1 + random() % 4) / 4; });
    }
  }
  return batches;
}

void Print(const StepBench& bench, const TrainingSession& session, const std::vector<double>& seconds, double loss,
           double flop_per_token) {
  const double best = *std::min_element(seconds.begin() + (seconds.size() > 1 ? 1 : 0), seconds.end());
  const int64_t ranks = bench.training.layout.world, tokens = ranks * session.batch() * session.sequence() * bench.grad_accumulation;
  const double per_s = static_cast<double>(tokens) / best, tflops = per_s * flop_per_token * 1e-12 / static_cast<double>(ranks);
  const int64_t arena = session.plan().arena_bytes;
  if (bench.json) {
    std::cout << nlohmann::json{{"device", bench.device},    {"ranks", ranks},         {"tokens", tokens},        {"sequence", bench.sequence},
                                {"loss", loss},              {"seconds", best},         {"all_seconds", seconds},
                                {"tokens_per_s", per_s},     {"model_tflops", tflops},  {"arena_bytes", arena}}
                     .dump()
              << "\n";
    return;
  }
  char line[200];
  const std::string each = ranks > 1 ? StrCat(" on each of ", ranks, " ranks") : "";
  std::snprintf(line, sizeof(line), "%lld tokens  %.4f s a step  %.0f tokens/s  %.1f model TFLOP/s  arena %s%s  loss %.4f\n",
                static_cast<long long>(tokens), best, per_s, tflops, FormatBytes(arena).c_str(), each.c_str(), loss);
  std::cout << line;
}

Ending BenchRank(const StepBench& bench, const Placement& place, Communicator* world) {
  PassManager passes;
  const bool leads = world == nullptr || world->rank() == 0;
  if (!leads) passes.print = [](const std::string&) {};
  const auto graph = LoadCanonical(bench.values["model"].as<std::string>(), bench.values, passes);
  TrainingSession session(*graph, bench.training, bench.micro_batch, bench.sequence, {.enabled = true}, passes, place, world);
  const auto tokens = RandomTokens(bench, session);
  std::vector<double> seconds;
  double loss = 0;
  for (int64_t step = 1; step <= bench.steps; ++step) {
    const bool traced = leads && step == bench.steps && !bench.trace.empty();
    if (traced) session.StartTrace();
    if (world != nullptr) world->Barrier({"Barrier", "step"});
    const auto start = std::chrono::steady_clock::now();
    loss = session.ComputeGradients(tokens).loss;
    session.Update(1e-5, step);
    session.Synchronize();
    if (world != nullptr) world->Barrier({"Barrier", "step"});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (!traced) continue;
    const auto spans = session.StopTrace();
    const auto lanes = TakeLanes();
    WriteText(bench.trace, TraceJson(spans, lanes));
    std::cerr << TraceTable(spans) << LaneTable(spans, lanes);
  }
  if (leads) Print(bench, session, seconds, loss, ModelFlopPerToken(*graph, bench.sequence));
  return {};
}

}  // namespace

int BenchStep(int argc, const char* const* argv) {
  StepBench bench;
  RankFlags ranks;
  DispatchFlags dispatch;
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  po::options_description main("Bench of whole steps on random tokens; absent weights are drawn from N(0, 0.02)");
  main.add_options()
      ("model", po::value<std::string>()->required(), "exported ONNX model; its weights need not exist")
      ("device", po::value<std::string>(&bench.device)->default_value("cpu"), "cpu or cuda")
      ("sequence", integer(bench.sequence), "tokens per sequence")
      ("micro-batch", integer(bench.micro_batch), "sequences per forward and backward of a rank")
      ("grad-accumulation", integer(bench.grad_accumulation), "micro-batches per step and rank")
      ("steps", integer(bench.steps), "steps; the fastest after the first is printed")
      ("threads", po::value<int>(&bench.threads)->default_value(0), "CPU threads of a rank; 0 = its share of this process's cores")
      ("trace", po::value<std::string>(&bench.trace), "file for the last step's launches (Perfetto); a table by op goes to stderr")
      ("json", po::bool_switch(&bench.json), "print JSON");
  if (!ParseOptions(argc, argv, "weir bench step MODEL.onnx [--device cuda --precision bfloat16 --sequence N --ranks N]",
                    {main, ranks.Options(), dispatch.Options(), GraphOptions(bench.training), ModelOptions()}, {"model"}, bench.values)) {
    return kExitOk;
  }
  if (bench.steps < 1 || bench.grad_accumulation < 1) throw UsageError("--steps and --grad-accumulation must be positive");
  CheckThreads(bench.threads);
  ranks.Check();
  CheckPrecision(bench.training, bench.device);
  const RankEnvironment environment = PlaceAmongRanks(ranks);
  CheckBatch("--micro-batch", bench.micro_batch, bench.sequence);
  dispatch.Check(WorldSize(ranks, environment), bench.sequence);
  std::vector<std::string> arguments = {"weir", "bench"};
  arguments.insert(arguments.end(), argv, argv + argc);
  if (const auto ended = StartRanks(ranks, environment, std::move(arguments))) return *ended;
  bench.training.layout.world = environment.world;
  dispatch.Apply(bench.training, bench.sequence);
  SetRankThreads(bench.threads, environment);
  return RunAsRank(ranks, environment, bench.device, "weir bench step", [&](const Placement& place, Communicator* world) {
    return BenchRank(bench, place, world);
  });
}

}  // namespace weir
