#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "backend/cpu/coordinator.h"
#include "backend/cpu/parallel.h"
#include "backend/lane_trace.h"
#include "cli/commands.h"
#include "cli/data_flags.h"
#include "cli/dispatch_flags.h"
#include "cli/graph_options.h"
#include "cli/idle_flags.h"
#include "cli/load_model.h"
#include "cli/outputs.h"
#include "cli/rank_flags.h"
#include "cli/run_checkpoints.h"
#include "cli/run_evaluations.h"
#include "cli/run_folder.h"
#include "cli/same_inputs.h"
#include "cli/sizes.h"
#include "cli/stop_signals.h"
#include "graph/error.h"
#include "graph_passes/shard_context.h"
#include "kernels/pipelined_llep/notices.h"
#include "optim/export.h"
#include "optim/trainer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

struct RunFlags {
  std::string model, output, non_finite, init, device;
  int64_t log_every = 10, trace_step = 0;
  uint64_t seed = 0;
  int threads = 0;
  bool tensorboard = false, dry_run = false;
};

std::vector<po::options_description> Flags(RunFlags& run, RankFlags& ranks, DispatchFlags& dispatch, DataFlags& data,
                                           TrainerOptions& trainer) {
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  const auto text = [](std::string& target) { return po::value<std::string>(&target)->default_value(target); };
  po::options_description main("Run");
  main.add_options()
      ("model", po::value<std::string>(&run.model)->required(), "exported ONNX model")
      ("out", po::value<std::string>(&run.output)->required(), "folder of this run: config, metrics, weights, picture; must be new or empty")
      ("config", po::value<std::string>(), "file of `key = value` lines with these flags' names; flags win")
      ("steps", integer(trainer.steps), "optimizer steps")
      ("seed", po::value<uint64_t>(&run.seed)->default_value(0), "of data order and --init")
      ("device", text(run.device = "cpu"), "where the step runs: cpu or cuda")
      ("threads", po::value<int>(&run.threads)->default_value(0), "CPU threads of a rank; 0 = its share of this process's cores; results do not depend on it")
      ("log-every", integer(run.log_every), "steps between progress lines")
      ("log-load-every", integer(trainer.load_every = 10), "steps between records of the experts' load in metrics.jsonl: max/mean, chunks, helpers and routes by layer; 0 = none")
      ("dry-run", po::bool_switch(&run.dry_run), "check flags, model and data, print the resolved config and the plan, write nothing")
      ("tensorboard", po::bool_switch(&run.tensorboard), "write the metrics as TensorBoard event files too, in RUN/tensorboard")
      ("trace-step", integer(run.trace_step), "step whose launches are timed: RUN/trace.json for Perfetto, RUN/trace.txt by op; 0 = none")
      ("non-finite", text(run.non_finite = "stop"), "when loss or gradients are NaN or infinite: stop or skip (the step changes nothing)")
      ("skip-loss-z", Real(trainer.skip_loss_z), "skip a step whose loss is so many standard deviations above the running mean of about 128 steps; 0 = off")
      ("init", text(run.init = "none"), "absent weights: none = error, normal = N(0, --init-std), norm gains 1, biases 0")
      ("init-std", Real(trainer.init.std), "standard deviation of --init normal");
  po::options_description batch("Batch");
  batch.add_options()
      ("sequence", integer(trainer.sequence), "tokens per sequence")
      ("micro-batch", integer(trainer.micro_batch), "sequences per forward and backward of a rank")
      ("grad-accumulation", integer(trainer.grad_accumulation), "micro-batches per step and rank; the loss is the mean over all valid tokens of the step");
  po::options_description optimizer("Optimizer (AdamW)");
  auto& schedule = trainer.schedule;
  auto& training = trainer.training;
  optimizer.add_options()
      ("learning-rate", Real(schedule.peak), "peak")
      ("min-learning-rate", Real(schedule.minimum), "where the schedule ends")
      ("schedule", text(schedule.kind), "constant, linear, cosine or wsd")
      ("warmup-steps", integer(schedule.warmup_steps), "linear from peak/steps to peak")
      ("decay-steps", integer(schedule.decay_steps), "wsd: length of the final decay, steps")
      ("beta1", Real(training.beta1), "first moment decay")
      ("beta2", Real(training.beta2), "second moment decay")
      ("epsilon", Real(training.epsilon), "added to sqrt(v)")
      ("weight-decay", Real(training.weight_decay), "decoupled")
      ("decay", text(training.decay), "decayed parameters: matrices (no norms, no biases), dims (two or more dims), all")
      ("max-norm", Real(training.max_norm), "clip the global gradient norm; 0 = off");
  return {main, ranks.Options(), dispatch.Options(), data.Options(), data.EvalOptions(), batch, optimizer, GraphOptions(trainer.training), ModelOptions()};
}

constexpr int64_t kMostTokens = int64_t{1} << 40;

// One usage error for every value that no run could mean.
void CheckRanges(const RunFlags& run, const TrainerOptions& o) {
  std::string wrong;
  const auto need = [&](bool ok, const std::string& text) {
    if (!ok) wrong += (wrong.empty() ? "" : "; ") + text;
  };
  need(run.threads >= 0 && run.threads <= kMostThreads, "--threads must be 0.." + std::to_string(kMostThreads));
  need(o.steps > 0, "--steps must be positive");
  need(run.trace_step >= 0 && run.trace_step <= o.steps, "--trace-step must be 1..--steps, or 0 for none");
  need(run.log_every > 0, "--log-every must be positive");
  need(o.load_every >= 0, "--log-load-every must not be negative");
  need(o.sequence > 0 && o.sequence < kMostTokens, "--sequence must be 1..2^40");
  need(o.micro_batch > 0 && o.micro_batch < kMostTokens, "--micro-batch must be 1..2^40");
  need(o.grad_accumulation > 0 && o.grad_accumulation < (int64_t{1} << 24), "--grad-accumulation must be 1..2^24");
  need(o.skip_loss_z >= 0 && std::isfinite(o.skip_loss_z), "--skip-loss-z must be finite and not negative");
  need(std::isfinite(o.init.std) && o.init.std >= 0, "--init-std must be finite and not negative");
  need(o.training.beta1 >= 0 && o.training.beta1 < 1, "--beta1 must be in [0, 1)");
  need(o.training.beta2 >= 0 && o.training.beta2 < 1, "--beta2 must be in [0, 1)");
  need(o.training.epsilon > 0 && std::isfinite(o.training.epsilon), "--epsilon must be positive");
  need(o.training.weight_decay >= 0 && std::isfinite(o.training.weight_decay), "--weight-decay must be finite and not negative");
  need(o.training.max_norm >= 0 && std::isfinite(o.training.max_norm), "--max-norm must be finite and not negative");
  const bool rates = std::isfinite(o.schedule.peak) && std::isfinite(o.schedule.minimum) && o.schedule.peak >= 0 && o.schedule.minimum >= 0;
  need(rates, "--learning-rate and --min-learning-rate must be finite and not negative");
  need(!rates || o.schedule.minimum <= o.schedule.peak, "--min-learning-rate must not exceed --learning-rate");
  need(run.init == "normal" || o.init.std == InitOptions{}.std, "--init-std is of --init normal: give both");
  need(o.schedule.kind == "wsd" || o.schedule.decay_steps == 0, "--decay-steps is of --schedule wsd: give both");
  need(o.schedule.kind != "wsd" || o.schedule.decay_steps > 1, "--schedule wsd needs --decay-steps of 2 or more");
  if (!wrong.empty()) throw UsageError(wrong);
}

// The trainer's next step; its launches timed when it is the one to trace.
StepRecord StepOrTrace(Trainer& trainer, int64_t trace_step, const fs::path& folder) {
  const bool traced = trace_step > 0 && trainer.State({}).step + 1 == trace_step;
  if (traced) trainer.session().StartTrace();
  const StepRecord record = trainer.Step();
  if (traced) {
    const auto spans = trainer.session().StopTrace();
    const auto lanes = TakeLanes();
    WriteText(folder / "trace.json", TraceJson(spans, lanes));
    WriteText(folder / "trace.txt", TraceTable(spans) + LaneTable(spans, lanes));
  }
  return record;
}

int64_t AgreedMaximum(Communicator* world, int64_t value) {
  if (world == nullptr) return value;
  return std::ranges::max(world->GatherValues(value, {"AgreedMaximum", "evaluated step"}));
}

// Every rank calls it, and then Meet: none ends, as if it had failed, while rank 0 writes.
void Save(const TrainingSession& session, const RunFolder* folder, Communicator* world, const SavedForm& form) {
  if (folder != nullptr) {
    folder->Save(session, world, form);
  } else {
    SaveWeights(session, {}, 0, world, form);
  }
}

void Meet(Communicator* world) {
  if (world != nullptr) world->Barrier({"Barrier", "weights"});
}

// Parameters are those of the last finished step. All ranks save together when all have the error; else rank 0 saves
// alone, if it holds all weights, and the others need not wait for it. Ranks that save together say the same.
void SaveAfterError(Error& error, const TrainingSession& session, const RunFolder* folder, Communicator* world, const SavedForm& form, const std::string& saved) {
  const bool all = dynamic_cast<const NonFiniteError*>(&error) != nullptr;
  if (!all && world != nullptr) world->Abort(error.what());
  if (!all && folder == nullptr) return;
  std::string kept = saved;
  try {
    Save(session, folder, all ? world : nullptr, form);
  } catch (const Error& second) {  // the first error is the one to tell; this one is its consequence
    kept = StrCat("no weights were saved: ", second.message());
  }
  error.AddContext("training; " + kept);
  try {
    if (all) Meet(world);
  } catch (const Error&) {
    return;  // a rank has met all others and ended with the same error
  }
}

// What a resumed run must share with the one that it goes on: the tokens and their order.
std::map<std::string, std::string> Identity(const RunFlags& run, const DataFlags& flags, const TrainerOptions& trainer,
                                            const DataLoader& data) {
  std::map<std::string, std::string> identity = {{"--seed", std::to_string(run.seed)},
                                                 {"--sequence", std::to_string(trainer.sequence)},
                                                 {"--leaves", std::to_string(trainer.training.leaves)},
                                                 {"--unit-rows", std::to_string(trainer.training.unit_rows)},
                                                 {"--vocab-leaf", std::to_string(trainer.training.vocab_leaf)}};
  flags.AddIdentity(data, identity);
  return identity;
}

struct TrainFlags {
  RunFlags run;
  RankFlags ranks;
  DispatchFlags dispatch;
  DataFlags data;
  TrainerOptions trainer;
  CheckpointFlags checkpoints;
  po::variables_map values;
  std::string config;  // resolved
};

// The graph takes weights of tokens where any of the data has them, to train or to evaluate on.
void TakeWeights(const DataLoader& data, const RunEvaluations& evaluations, TrainingOptions& training) {
  training.token_weights = training.token_weights || data.weighted() || evaluations.weighted();
}

void CheckSameData(Communicator& world, const DataLoader& data, const RunEvaluations& evaluations) {
  std::vector<RankInput> inputs = InputsOf("--data", data);
  if (evaluations.held_out()) std::ranges::copy(InputsOf("--eval-data", *evaluations.held_out()), std::back_inserter(inputs));
  CheckSameInputs(world, inputs);
}

// Throws what went wrong on any rank; returns the code, the same on all, and what stopped the run early, on rank 0, or "".
Ending TrainRank(const TrainFlags& flags, Communicator* world) {
  const bool leads = world == nullptr || world->rank() == 0;
  PassManager passes;
  if (!leads) passes.print = [](const std::string&) {};
  if (world != nullptr) CheckSameConfig(*world, flags.config);
  if (const int signal = AgreedSignal(world)) {
    return {flags.checkpoints.enabled() ? kExitRequeue : kExitFailed, leads ? StrCat("stopped by signal ", signal, " before anything was begun") : ""};
  }
  const auto graph = LoadCanonical(flags.run.model, flags.values, passes);
  if (world != nullptr) CheckSameInputs(*world, InputsOf(flags.run.model, *graph));
  const int64_t vocabulary = VocabularyOf(*graph);
  if (leads) TellOfModel(*graph, flags.trainer.init, flags.values.count("names") != 0);
  const SavedForm form = {.once = flags.checkpoints.saves_both() ? SavedOnce() : TiedParameters(*graph), .untrained = LoadUntrained(*graph, flags.values)};
  if (leads && flags.checkpoints.saves_both()) std::cerr << LacksTiedName(*graph);
  const DataLoader data = flags.data.Open(flags.trainer.sequence, flags.run.seed, vocabulary);
  RunEvaluations evaluations(flags.data, flags.trainer.sequence, flags.run.seed, vocabulary);
  if (world != nullptr) CheckSameData(*world, data, evaluations);
  TrainerOptions options = flags.trainer;
  TakeWeights(data, evaluations, options.training);
  // A checkpoint holds every parameter: a run that goes on from it, or begins with one, needs no other, and never begins with drawn ones.
  options.init.enabled = options.init.enabled || flags.checkpoints.FindsOne(flags.run.output) || flags.checkpoints.initial();
  Trainer trainer(*graph, options, data, passes, world);
  passes.CheckNames();
  const fs::path path = flags.run.output;
  std::unique_ptr<RunLock> lock;
  if (leads) {
    const bool goes_on = PrepareFolder(path, flags.checkpoints.resumes());
    lock = std::make_unique<RunLock>(path);
    if (!goes_on) ClearFolder(path);
  }
  RunCheckpoints checkpoints(flags.checkpoints, path, Identity(flags.run, flags.data, flags.trainer, data), leads);
  const int64_t resumed = checkpoints.Start(trainer, *graph, {{"config.ini", flags.config}, {"plan.json", PlanJson(trainer.session().plan())}}, form);
  if (world != nullptr) CheckSameStart(*world, resumed);
  WEIR_CHECK(resumed <= flags.trainer.steps, ErrorCode::kInvalidArgument, "--steps=", flags.trainer.steps, ": the run in '", path.string(),
             "' has finished step ", resumed, " already");
  if (leads && resumed == 0 && flags.checkpoints.resumes()) KeepOldWeights(path, {flags.config, flags.trainer.steps, flags.checkpoints.enabled()});
  if (resumed == flags.trainer.steps && leads) std::cerr << "all " << resumed << " steps are done already\n";
  std::unique_ptr<RunFolder> folder;
  if (leads) {
    folder = std::make_unique<RunFolder>(path, fs::path(flags.run.model).filename().string(), resumed, flags.run.tensorboard,
                                         Progress(flags.trainer.steps, flags.run.log_every, std::cerr, isatty(STDERR_FILENO) != 0));
    checkpoints.RecordResumed(*folder);
    if (resumed > 0) TellConfigChanges(fs::exists(path / "config.ini") ? path / "config.ini" : checkpoints.Of(resumed) / "config.ini", flags.config);
    if (resumed < flags.trainer.steps || !fs::exists(path / "config.ini")) {  // else the record is of the steps that were done
      WriteText(path / "config.ini", checkpoints.WithOrigin(flags.config));
      WriteText(path / "passes.log", passes.Log());
      WriteText(path / "plan.json", PlanJson(trainer.session().plan()));
    }
    const int64_t ranks = flags.trainer.training.layout.world;
    std::cerr << "training on " << (ranks > 1 ? StrCat(ranks, " ranks of ") : "")
              << (flags.trainer.device.kind == DeviceKind::kCuda ? "a GPU and " : "") << CpuThreads() << " CPU threads: "
              << data.tokens_per_epoch() << (data.is_text() ? " tokens (bytes of text) in " : " tokens in ") << data.documents() << " documents, " << trainer.tokens_per_step()
              << " tokens per step, arena " << FormatBytes(trainer.session().plan().arena_bytes) << (ranks > 1 ? " per rank\n" : "\n");
    const TrainingOptions& training = options.training;
    if (data.weighted() || evaluations.weighted()) {
      std::cerr << "tokens have weights: losses are sum(weight * loss) / sum(weight), over a step or an evaluation\n";
    } else if (training.token_weights) {
      std::cerr << "notice: --token-weights changes nothing here: no data has weights, so each token counts 1\n";
    }
    if (flags.trainer.device.kind == DeviceKind::kCuda && training.precision == "bfloat16" && !training.deterministic && training.pack != "isolate") {
      std::cerr << "attention's backward is cuDNN's, which adds dq in any order: runs may differ in their last bits; --deterministic "
                   "gives the same bits, slower\n";
    }
    if (flags.trainer.device.kind == DeviceKind::kCuda && training.pack == "isolate") {
      std::cerr << "documents are kept apart by weir's own attention kernels: a step's attention takes about 1.5 times cuDNN's time\n";
    }
    for (const std::string& notice : DispatchNotices(trainer.session().graph())) std::cerr << notice << "\n";
  }
  int stopped_by = 0;
  int64_t done = resumed;
  bool complete = false;
  const auto stopped = [&] { return (stopped_by = AgreedSignal(world)) != 0; };
  evaluations.Start(AgreedMaximum(world, folder ? folder->Evaluated() : -1));
  try {
    complete = evaluations.AfterStep(trainer, resumed, stopped, folder.get()) && trainer.Done();
    while (!complete && !stopped()) {
      BeginSteps();
      SetPhase(StrCat("step ", done + 1));
      const StepRecord record = StepOrTrace(trainer, leads ? flags.run.trace_step : 0, flags.run.output);
      done = record.step;
      if (folder) folder->Record(record);
      checkpoints.AfterStep(trainer, record.step, folder.get());
      SetPhase(StrCat("after step ", done));
      complete = evaluations.AfterStep(trainer, record.step, stopped, folder.get()) && trainer.Done();
    }
  } catch (Error& error) {
    if (leads && error.code() == ErrorCode::kDeviceError) std::cerr << NonFiniteWeights(*graph);
    SaveAfterError(error, trainer.session(), folder.get(), world, form, StrCat("weights after step ", done, " are in ", path.string()));
    throw;
  }
  SetPhase(StrCat("saving after step ", done));
  checkpoints.Finish(trainer, folder.get());
  Save(trainer.session(), folder.get(), world, form);
  Meet(world);
  if (!folder) return {complete ? kExitOk : flags.checkpoints.enabled() ? kExitRequeue : kExitFailed, ""};
  if (!complete && flags.checkpoints.enabled()) {
    return {kExitRequeue, StrCat("stopped by signal ", stopped_by, " after step ", folder->Steps(), " of ", flags.trainer.steps,
                                 "; go on with --resume auto")};
  }
  if (!complete) {
    return {kExitFailed, StrCat("stopped by signal ", stopped_by, " after step ", folder->Steps(), " of ", flags.trainer.steps,
                                "; its weights are in ", folder->Weights().string())};
  }
  errno = 0;
  std::cout << "wrote " << folder->Weights().string() << ", metrics.jsonl, loss.svg\n" << std::flush;
  if (errno == EPIPE) std::cout.clear();  // nobody reads; the results are files
  return {kExitOk, ""};
}

// What a run of these flags would be: its config and, of rank 0, its plan. Data and model are read, nothing is written.
int DryRun(TrainFlags& flags, int64_t world) {
  TrainingOptions& training = flags.trainer.training;
  if (fs::exists(flags.run.output)) CheckFolder(flags.run.output, flags.checkpoints.resumes());
  if (const std::string notice = UnwritableNotice(flags.run.output); !notice.empty()) std::cerr << notice << "\n";
  training.layout.world = world;
  flags.dispatch.Apply(training, flags.trainer.sequence);
  SetThreadsOfRank(flags.run.threads, world);
  PassManager passes;
  const auto graph = LoadCanonical(flags.run.model, flags.values, passes);
  TellOfModel(*graph, flags.trainer.init, flags.values.count("names") != 0);
  const int64_t vocabulary = VocabularyOf(*graph);
  const DataLoader data = flags.data.Open(flags.trainer.sequence, flags.run.seed, vocabulary);
  TakeWeights(data, RunEvaluations(flags.data, flags.trainer.sequence, flags.run.seed, vocabulary), training);
  std::cerr << InitialLoadNotice(flags.checkpoints, flags.run.output, *graph);
  const int64_t own = SequenceOfRank(*graph, training.layout, flags.trainer.sequence);
  BuildTrainingGraph(*graph, training, passes);
  passes.CheckNames();
  SpecializeShapes(*graph, flags.trainer.micro_batch, own);
  PlaceOnHost(*graph, training, passes);
  Plan plan = MakePlan(*graph, ParseDevice(flags.run.device));
  ReserveStaging(*graph, plan, StagingBytes(flags.checkpoints.staging(), *graph, training.layout, 0));
  std::cout << flags.config << "\n" << PlanTable(plan);
  std::cerr << "dry run: " << data.tokens_per_epoch() << (data.is_text() ? " tokens (bytes of text) in " : " tokens in ") << data.documents() << " documents, " << world << " ranks\n";
  return kExitOk;
}

}  // namespace

int TrainCommand(int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a run outlives the reader of what it prints
  TrainFlags flags;
  auto groups = Flags(flags.run, flags.ranks, flags.dispatch, flags.data, flags.trainer);
  groups.push_back(flags.checkpoints.Options());
  if (!ParseOptions(argc, argv, "weir train MODEL.onnx --data PATH --out RUN [flags]", groups, {"model"}, flags.values)) {
    return kExitOk;
  }
  const RunFlags& run = flags.run;
  if (run.non_finite != "stop" && run.non_finite != "skip") throw UsageError("--non-finite must be stop or skip, got " + run.non_finite);
  if (run.init != "none" && run.init != "normal") throw UsageError("--init must be none or normal, got " + run.init);
  CheckRanges(run, flags.trainer);
  flags.ranks.Check();
  CheckPrecision(flags.trainer.training, run.device);
  flags.checkpoints.Check();
  flags.data.isolate = flags.trainer.training.pack == "isolate";
  if (flags.data.isolate && flags.data.no_pack) throw UsageError("--pack isolate and --no-pack exclude each other: with --no-pack every document has rows of its own");
  flags.data.Check();
  const RankEnvironment environment = PlaceAmongRanks(flags.ranks);
  flags.dispatch.Check(WorldSize(flags.ranks, environment), flags.trainer.sequence);
  const std::string alone = NeedsOneMicroBatch(flags.trainer.training, flags.dispatch, WorldSize(flags.ranks, environment));
  if (flags.trainer.grad_accumulation > 1 && !alone.empty()) throw UsageError(alone);
  flags.config = ResolvedConfig(groups, flags.values);
  flags.trainer.init.enabled = run.init == "normal";
  flags.trainer.init.seed = run.seed;
  if (environment.rank == 0 && environment.launcher != "weir") {
    for (const std::string& notice : IdleFlags(flags.trainer.training, flags.dispatch, run.device, WorldSize(flags.ranks, environment))) std::cerr << notice << "\n";
  }
  if (run.dry_run) return DryRun(flags, WorldSize(flags.ranks, environment));
  std::vector<std::string> arguments = {"weir"};
  arguments.insert(arguments.end(), argv, argv + argc);
  HoldStopSignals();
  if (const auto ended = StartRanks(flags.ranks, environment, std::move(arguments))) return *ended;
  StopOnSignals(environment.rank == 0, flags.checkpoints.enabled());
  TrainerOptions& options = flags.trainer;
  options.non_finite = run.non_finite == "skip" ? NonFinitePolicy::kSkip : NonFinitePolicy::kStop;
  options.training.layout.world = environment.world;
  flags.dispatch.Apply(options.training, options.sequence);
  SetRankThreads(run.threads, environment);
  return RunAsRank(flags.ranks, environment, run.device, "weir train", [&](const Placement& place, Communicator* world) {
    options.device = place;
    options.device.staging = flags.checkpoints.staging();
    return TrainRank(flags, world);
  });
}

}  // namespace weir
