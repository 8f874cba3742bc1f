#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "backend/cpu/parallel.h"
#include "cli/commands.h"
#include "cli/graph_options.h"
#include "cli/load_model.h"
#include "graph/error.h"
#include "optim/export.h"
#include "optim/trainer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

struct DataFlags {
  std::vector<std::string> paths;
  TokenFileOptions files;
  bool no_shuffle = false;
};

struct RunFlags {
  std::string model, output, non_finite, init, device;
  int64_t log_every = 10, trace_step = 0;
  uint64_t seed = 0;
  int threads = 0;
};

std::vector<po::options_description> Flags(RunFlags& run, DataFlags& data, TrainerOptions& trainer) {
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
      ("threads", po::value<int>(&run.threads)->default_value(0), "CPU threads; 0 = all cores of this process; results do not depend on it")
      ("log-every", integer(run.log_every), "steps between progress lines")
      ("trace-step", integer(run.trace_step), "step whose launches are timed: RUN/trace.json for Perfetto, RUN/trace.txt by op; 0 = none")
      ("non-finite", text(run.non_finite = "stop"), "when loss or gradients are NaN or infinite: stop or skip (the step changes nothing)")
      ("init", text(run.init = "none"), "absent weights: none = error, normal = N(0, --init-std), norm gains 1, biases 0")
      ("init-std", Real(trainer.init.std), "standard deviation of --init normal");
  po::options_description files("Data");
  files.add_options()
      ("data", po::value<std::vector<std::string>>(&data.paths)->required(),
       "token file or folder of files; repeatable. llm.c / nanoGPT .bin, .npy, Megatron .bin + .idx, text as bytes")
      ("data-format", text(data.files.format), "auto, text, u16, u32, npy or megatron")
      ("document-separator", integer(data.files.separator), "id that ends a document in files without document bounds; -1 = none")
      ("no-shuffle", po::bool_switch(&data.no_shuffle), "keep documents in file order");
  po::options_description batch("Batch");
  batch.add_options()
      ("sequence", integer(trainer.sequence), "tokens per sequence")
      ("micro-batch", integer(trainer.micro_batch), "sequences per forward and backward")
      ("grad-accumulation", integer(trainer.grad_accumulation), "micro-batches per step; the loss is the mean over all valid tokens of the step");
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
  return {main, files, batch, optimizer, GraphOptions(trainer.training), ModelOptions()};
}

void PrepareFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  WEIR_CHECK(!error && fs::is_directory(folder), ErrorCode::kIoError, "cannot create run folder '", folder.string(), "': ",
             error.message());
  WEIR_CHECK(fs::is_empty(folder), ErrorCode::kInvalidArgument, "run folder '", folder.string(),
             "' is not empty; give another --out, or remove the old run");
}

void WriteText(const fs::path& path, const std::string& text) {
  std::ofstream out(path);
  out << text << std::flush;
  WEIR_CHECK(out.good(), ErrorCode::kIoError, "cannot write '", path.string(), "'");
}

int64_t VocabularyOf(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->op() == "Embedding") return node->in(1)->shape[0].Constant();
  }
  throw Error(ErrorCode::kInvalidModel, "the model has no token embedding to train from input_ids");
}

DataLoader OpenData(const DataFlags& flags, const TrainerOptions& trainer, uint64_t seed, int64_t vocabulary) {
  std::vector<std::unique_ptr<TokenFile>> files;
  for (const std::string& path : flags.paths) {
    for (auto& file : OpenTokenFiles(path, flags.files)) files.push_back(std::move(file));
  }
  return DataLoader(std::move(files), trainer.sequence, seed, !flags.no_shuffle, vocabulary);
}

// Ctrl-C and the scheduler's SIGTERM end a run between steps, with its weights saved. A second one kills at once.
volatile std::sig_atomic_t stop_signal = 0;

void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { stop_signal = signal; };
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

constexpr int kMostThreads = 1024;
constexpr int64_t kMostTokens = int64_t{1} << 40;

// One usage error for every value that no run could mean.
void CheckRanges(const RunFlags& run, const TrainerOptions& o) {
  std::string wrong;
  const auto need = [&](bool ok, const std::string& text) {
    if (!ok) wrong += (wrong.empty() ? "" : "; ") + text;
  };
  need(run.threads >= 0 && run.threads <= kMostThreads, "--threads must be 0.." + std::to_string(kMostThreads));
  need(o.steps > 0, "--steps must be positive");
  need(run.log_every > 0, "--log-every must be positive");
  need(o.sequence > 0 && o.sequence < kMostTokens, "--sequence must be 1..2^40");
  need(o.micro_batch > 0 && o.micro_batch < kMostTokens, "--micro-batch must be 1..2^40");
  need(o.grad_accumulation > 0 && o.grad_accumulation < (int64_t{1} << 24), "--grad-accumulation must be 1..2^24");
  need(std::isfinite(o.init.std) && o.init.std >= 0, "--init-std must be finite and not negative");
  need(o.training.beta1 >= 0 && o.training.beta1 < 1, "--beta1 must be in [0, 1)");
  need(o.training.beta2 >= 0 && o.training.beta2 < 1, "--beta2 must be in [0, 1)");
  need(o.training.epsilon > 0 && std::isfinite(o.training.epsilon), "--epsilon must be positive");
  need(o.training.weight_decay >= 0 && std::isfinite(o.training.weight_decay), "--weight-decay must be finite and not negative");
  need(o.training.max_norm >= 0 && std::isfinite(o.training.max_norm), "--max-norm must be finite and not negative");
  need(o.schedule.minimum <= o.schedule.peak, "--min-learning-rate must not exceed --learning-rate");
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
    WriteText(folder / "trace.json", TraceJson(spans));
    WriteText(folder / "trace.txt", TraceTable(spans));
  }
  return record;
}

}  // namespace

int TrainCommand(int argc, const char* const* argv) {
  RunFlags run;
  DataFlags data_flags;
  TrainerOptions options;
  const auto groups = Flags(run, data_flags, options);
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir train MODEL.onnx --data PATH --out RUN [flags]", groups, {"model"}, values)) return kExitOk;
  if (run.non_finite != "stop" && run.non_finite != "skip") throw UsageError("--non-finite must be stop or skip, got " + run.non_finite);
  if (run.init != "none" && run.init != "normal") throw UsageError("--init must be none or normal, got " + run.init);
  CheckRanges(run, options);
  options.non_finite = run.non_finite == "skip" ? NonFinitePolicy::kSkip : NonFinitePolicy::kStop;
  options.init.enabled = run.init == "normal";
  options.init.seed = run.seed;
  options.device = ChosenDevice(run.device);
  SetCpuThreads(run.threads);

  PassManager passes;
  const auto graph = LoadCanonical(run.model, values, passes);
  const DataLoader data = OpenData(data_flags, options, run.seed, VocabularyOf(*graph));
  Trainer trainer(*graph, options, data, passes);
  passes.CheckNames();
  const fs::path folder = run.output;
  PrepareFolder(folder);
  WriteText(folder / "config.ini", ResolvedConfig(groups, values));
  WriteText(folder / "passes.log", passes.Log());
  WriteText(folder / "plan.json", PlanJson(trainer.session().plan()));

  const int64_t per_step = options.micro_batch * options.grad_accumulation * options.sequence;
  std::cerr << "training on " << CpuThreads() << " CPU threads: " << data.tokens_per_epoch() << " tokens in " << data.documents()
            << " documents, " << per_step << " tokens per step, arena "
            << trainer.session().plan().arena_bytes / (1024 * 1024) << " MiB\n";
  MetricsLog metrics(folder / "metrics.jsonl");
  Progress progress(options.steps, run.log_every, std::cerr, isatty(STDERR_FILENO) != 0);
  std::vector<StepRecord> records;
  const auto save = [&] {
    SaveWeights(trainer.session(), folder / "weights.safetensors", static_cast<int64_t>(records.size()));
    WriteText(folder / "loss.svg", LossPicture(records, fs::path(run.model).filename().string()));
  };
  StopOnSignals();
  try {
    while (!trainer.Done() && stop_signal == 0) {
      records.push_back(StepOrTrace(trainer, run.trace_step, folder));
      metrics.Write(records.back());
      progress.Show(records.back());
    }
  } catch (Error& error) {
    std::string kept = StrCat("weights after step ", records.size(), " are in ", folder.string());
    try {
      save();  // parameters are those of the last finished step
    } catch (const Error& second) {  // the first error is the one to tell; this one is its consequence
      kept = StrCat("no weights were saved: ", second.message());
    }
    throw error.AddContext(StrCat("training; ", kept));
  }
  save();
  WEIR_CHECK(trainer.Done(), ErrorCode::kDeviceError, "stopped by signal ", int{stop_signal}, " after step ", records.size(), " of ",
             options.steps, "; its weights are in ", (folder / "weights.safetensors").string());
  std::cout << "wrote " << (folder / "weights.safetensors").string() << ", metrics.jsonl, loss.svg\n";
  return kExitOk;
}

}  // namespace weir
