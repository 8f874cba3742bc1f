// weir bench step: whole optimizer steps of a model on random tokens.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "backend/lane_trace.h"
#include "cli/bench_step.h"
#include "cli/dispatch_flags.h"
#include "cli/graph_options.h"
#include "cli/load_model.h"
#include "cli/outputs.h"
#include "cli/rank_flags.h"
#include "cli/run_costs.h"
#include "cli/sizes.h"
#include "optim/model_flop.h"
#include "optim/training_session.h"

namespace weir {
namespace {

struct StepBench {
  int64_t sequence = 4096, micro_batch = 1, grad_accumulation = 1, steps = 4, save_every = 0;
  int threads = 0;
  std::string device, trace, out;
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

nlohmann::json CostsJson(const RunCosts& costs, double step_s) {
  const RunCosts::Saves saves = costs.saves();
  return {{"saves", saves.count},           {"saved_bytes", saves.bytes},          {"save_waited_s", saves.waited_s}, {"save_late_s", saves.late_s}, {"save_write_s", saves.write_s},
          {"save_share", costs.save_share(step_s)}, {"beside_s", costs.beside_s()}, {"alone_s", costs.alone_s()},
          {"log_s", costs.log_s()},         {"log_share", costs.log_share(step_s)}};
}

// "" where there was none.
std::string Seconds(const char* what, double seconds) {
  char text[80];
  std::snprintf(text, sizeof(text), ", %s %.4f s", what, seconds);
  return seconds == 0 ? "" : text;
}

void PrintCosts(const StepBench& bench, const RunCosts& costs, double step_s) {
  const RunCosts::Saves saves = costs.saves();
  char line[300];
  std::snprintf(line, sizeof(line), "checkpoints: %lld of %s, every %lld steps: steps waited %.4f s for each, %.2f %% of their time, %.4f s of it for the one before, still being written; written in %.3f s",
                static_cast<long long>(saves.count), FormatBytes(saves.bytes).c_str(), static_cast<long long>(bench.save_every), saves.waited_s,
                100 * costs.save_share(step_s), saves.late_s, saves.write_s);
  std::cout << line << Seconds("a step beside that", costs.beside_s()) << Seconds("alone", costs.alone_s()) << "\n";
  std::snprintf(line, sizeof(line), "logging: %.6f s a step, %.3f %% of it (metrics.jsonl, TensorBoard, progress; expert load every 10 steps)\n",
                costs.log_s(), 100 * costs.log_share(step_s));
  std::cout << line;
}

void Print(const StepBench& bench, const TrainingSession& session, const std::vector<double>& seconds, double loss,
           double flop_per_token, const RunCosts* costs) {
  const double best = *std::min_element(seconds.begin() + (seconds.size() > 1 ? 1 : 0), seconds.end());
  const int64_t ranks = bench.training.layout.world, tokens = ranks * session.batch() * session.sequence() * bench.grad_accumulation;
  const double per_s = static_cast<double>(tokens) / best, tflops = per_s * flop_per_token * 1e-12 / static_cast<double>(ranks);
  const int64_t arena = session.plan().arena_bytes;
  if (bench.json) {
    nlohmann::json json = {{"device", bench.device},    {"ranks", ranks},         {"tokens", tokens},        {"sequence", bench.sequence},
                           {"loss", loss},              {"seconds", best},         {"all_seconds", seconds},
                           {"tokens_per_s", per_s},     {"model_tflops", tflops},  {"arena_bytes", arena}};
    if (costs != nullptr) json.update(CostsJson(*costs, best));
    std::cout << json.dump() << "\n";
    return;
  }
  char line[200];
  const std::string each = ranks > 1 ? StrCat(" on each of ", ranks, " ranks") : "";
  std::snprintf(line, sizeof(line), "%lld tokens  %.4f s a step  %.0f tokens/s  %.1f model TFLOP/s  arena %s%s  loss %.4f\n",
                static_cast<long long>(tokens), best, per_s, tflops, FormatBytes(arena).c_str(), each.c_str(), loss);
  std::cout << line;
  if (costs != nullptr) PrintCosts(bench, *costs, best);
}

Ending BenchRank(const StepBench& bench, Placement place, Communicator* world) {
  PassManager passes;
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [](auto time) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - time).count(); };
  const bool leads = world == nullptr || world->rank() == 0;
  if (!leads) passes.print = [](const std::string&) {};
  const auto graph = LoadCanonical(bench.values["model"].as<std::string>(), bench.values, passes);
  if (bench.save_every > 0) place.staging = Staging::kSnapshot;
  TrainingSession session(*graph, bench.training, bench.micro_batch, bench.sequence, {.enabled = true}, passes, place, world);
  const auto tokens = RandomTokens(bench, session);
  std::optional<RunCosts> costs;
  if (bench.save_every > 0) costs.emplace(session, bench.out, bench.save_every, bench.steps);
  if (leads && !bench.json) std::cerr << "ready after " << std::fixed << std::setprecision(1) << since(begin) << std::defaultfloat << " s\n";
  std::vector<double> seconds;
  double loss = 0;
  for (int64_t step = 1; step <= bench.steps; ++step) {
    const bool traced = leads && step == bench.steps && !bench.trace.empty();
    if (traced) session.StartTrace();
    if (world != nullptr) world->Barrier({"Barrier", "step"});
    const auto start = std::chrono::steady_clock::now();
    const StepResult result = session.ComputeGradients(tokens);
    loss = result.loss;
    session.Update(1e-5, step);
    session.Synchronize();
    if (world != nullptr) world->Barrier({"Barrier", "step"});
    seconds.push_back(since(start));
    if (costs) costs->AfterStep(step, result, seconds.back());
    if (!traced) continue;
    const auto spans = session.StopTrace();
    const auto lanes = TakeLanes();
    WriteText(bench.trace, TraceJson(spans, lanes));
    std::cerr << TraceTable(spans) << LaneTable(spans, lanes);
  }
  if (costs) costs->Finish();
  if (leads) Print(bench, session, seconds, loss, ModelFlopPerToken(*graph, bench.sequence), costs ? &*costs : nullptr);
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
      ("save-every", integer(bench.save_every), "asynchronous checkpoints every so many steps, and train's logs: what steps wait for them is printed; 0 = none")
      ("out", po::value<std::string>(&bench.out)->default_value(""), "with --save-every: new or empty folder on the disk to measure, removed at the end; none: in the folder for temporary files")
      ("threads", po::value<int>(&bench.threads)->default_value(0), "CPU threads of a rank; 0 = its share of this process's cores")
      ("trace", po::value<std::string>(&bench.trace), "file for the last step's launches (Perfetto); a table by op goes to stderr")
      ("json", po::bool_switch(&bench.json), "print JSON");
  if (!ParseOptions(argc, argv, "weir bench step MODEL.onnx [--device cuda --precision bfloat16 --sequence N --ranks N]",
                    {main, ranks.Options(), dispatch.Options(), GraphOptions(bench.training), ModelOptions()}, {"model"}, bench.values)) {
    return kExitOk;
  }
  if (bench.steps < 1 || bench.grad_accumulation < 1) throw UsageError("--steps and --grad-accumulation must be positive");
  if (bench.save_every < 0 || bench.save_every > bench.steps) throw UsageError("--save-every must be 1..--steps, or 0 for none");
  if (bench.save_every == 0 && !bench.out.empty()) throw UsageError("--out holds the checkpoints of --save-every: give both");
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
