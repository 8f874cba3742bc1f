#include "backend/plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <span>

#include "backend/cpu/parallel.h"
#include "cli/commands.h"
#include "cli/graph_options.h"
#include "cli/idle_flags.h"
#include "cli/load_model.h"
#include "cli/outputs.h"
#include "cli/plan_output.h"
#include "cli/plan_picture.h"
#include "cli/rank_flags.h"
#include "cli/run_checkpoints.h"
#include "cli/sizes.h"
#include "graph/error.h"
#include "kernels/pipelined_llep/notices.h"

namespace weir {
namespace {

// What the driver showed beside the arena of a process on an H200: its context and the libraries; and the most that was seen with two ranks,
// for links between them (bench/results/h200x2.md: 0.8 to 1.7 GiB in all).
constexpr int64_t kCudaContext = int64_t{512} << 20, kCudaLinks = int64_t{1280} << 20;
constexpr int64_t kMostAccumulation = int64_t{1} << 24;
constexpr int64_t kMostTokens = int64_t{1} << 24;  // of a sequence that a picture goes to

struct PlanFlags {
  PlanKnobs knobs;
  CheckpointFlags checkpoints;
  std::string model, device, device_memory, host_memory, machine, html;
  int64_t token_step = 1024;
  int threads = 0;
  bool max_tokens = false, choose = false, json = false;
};

// What of `plan` alone does not belong on the command line of a run.
const FlagNames kOfPlan = {"model", "device-memory", "host-memory", "max-tokens", "token-step", "auto", "machine", "html", "json", "print-after", "grad-accumulation"};

struct GivenFlagsOfPlan {
  FlagNames knobs;     // IsKnobFlag
  std::string others;  // " --ranks 2 --freeze '*embed*'", but for kOfPlan
};

GivenFlagsOfPlan Given(std::span<const po::options_description> groups, const po::variables_map& values) {
  GivenFlagsOfPlan given;
  for (const std::string& name : GivenNames(groups, values)) {
    if (IsKnobFlag(name)) given.knobs.insert(name);
    else if (!kOfPlan.contains(name)) given.others += FlagWords(name, values[name].value());
  }
  return given;
}

// Of those, what a search leaves as it is: of a batch only the number of tokens is.
FlagNames FixedOf(FlagNames given) {
  given.erase("micro-batch");
  given.erase("sequence");
  return given;
}

po::options_description Options(PlanFlags& flags) {
  const auto text = [](std::string& target) { return po::value<std::string>(&target); };
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  po::options_description main("Plan");
  main.add_options()
      ("model", text(flags.model)->required(), "exported ONNX model; its weights need not exist")
      ("sequence", integer(flags.knobs.sequence), "tokens per sequence")
      ("micro-batch", integer(flags.knobs.micro_batch), "sequences per forward and backward")
      ("grad-accumulation", integer(flags.knobs.grad_accumulation), "micro-batches per step, for the estimate and for --auto, which keeps a step's tokens; the bytes do not depend on it")
      ("device", text(flags.device)->default_value("cpu"), "whose kernels and scratch the plan has: cpu or cuda; no GPU is needed")
      ("ranks", integer(flags.knobs.training.layout.world), "ranks that train together; the bytes are those of rank 0, which holds most")
      ("device-memory", text(flags.device_memory), "budget per rank, such as 141GB: says whether the step fits (exit code 3 when not), and what would")
      ("host-memory", text(flags.host_memory), "the same for host memory")
      ("max-tokens", po::bool_switch(&flags.max_tokens), "find the longest --sequence that fits the budgets with these knobs, with --auto whatever the knobs that are not given")
      ("token-step", integer(flags.token_step), "with --max-tokens: it is a multiple of this")
      ("auto", po::bool_switch(&flags.choose), "choose the knobs that are not given: the fastest by estimate whose exact plan fits, which is then shown; prints its command line, with --micro-batch and --grad-accumulation for as many tokens. "
                                               "With --max-tokens: for the longest sequence that any choice fits")
      ("machine", text(flags.machine), "JSON FILE of what the machine does per second, for estimates: gemm_flops, attention_flops, attention_backward_flops, "
                                       "experts_flops, experts_backward_flops, memory_bandwidth, h2d, d2h, link; absent ones are an H200's in bfloat16. Default: that with --device cuda, else this process's cores")
      ("threads", po::value<int>(&flags.threads)->default_value(0),
       "CPU threads of a rank, which workspaces on the CPU grow with; 0 = its share of this machine's cores, all ranks being here")
      ("html", text(flags.html), "FILE for a picture: bytes by term against tokens, with and without each operator")
      ("json", po::bool_switch(&flags.json), "print every buffer, step, the ledger and all findings as JSON");
  return main;
}

void Check(const PlanFlags& flags, const Budgets& budgets) {
  const PlanKnobs& knobs = flags.knobs;
  CheckBatch("--micro-batch", knobs.micro_batch, knobs.sequence);
  if (knobs.grad_accumulation < 1 || knobs.grad_accumulation >= kMostAccumulation) throw UsageError("--grad-accumulation must be 1..2^24");
  const std::string alone = NeedsOneMicroBatch(knobs.training, knobs.dispatch, knobs.training.layout.world);
  if (knobs.grad_accumulation > 1 && !alone.empty()) throw UsageError(alone);
  CheckThreads(flags.threads);
  if (flags.token_step < 1) throw UsageError("--token-step must be positive");
  if (flags.max_tokens && !budgets.given()) throw UsageError("--max-tokens needs a budget: give --device-memory or --host-memory");
  if (flags.choose && !budgets.given()) throw UsageError("--auto needs a budget: give --device-memory");
}

// `budget` < 0: none was given.
void CheckFits(const char* flag, int64_t bytes, int64_t beside, int64_t budget) {
  if (budget < 0) return;
  const std::string context = beside > 0 ? StrCat(" and ", FormatBytes(beside), " beside it for CUDA's context and links") : "";
  WEIR_CHECK(bytes + beside <= budget, ErrorCode::kBudgetExceeded, "the step needs ", FormatBytes(bytes), context, ", ", flag, " is ", FormatBytes(budget));
  std::cerr << "fits: " << FormatBytes(bytes) << context << " of " << FormatBytes(budget) << " " << flag << "\n";
}

// Of the knobs as given, of those that --auto chose, or whether any length fits.
void CheckVerdict(const PlanFindings& found) {
  if (found.searched_length && !found.automatic) {
    WEIR_CHECK(found.longest != nullptr, ErrorCode::kBudgetExceeded, "no sequence of --token-step=", found.token_step, " tokens or more fits the budgets");
    return;
  }
  WEIR_CHECK(!found.automatic || found.chosen != nullptr, ErrorCode::kBudgetExceeded, "no choice of knobs fits the budgets");
  CheckFits("--device-memory", found.automatic ? found.chosen->device_bytes : found.plan->arena_bytes, found.budgets.beside_arena, found.budgets.device);
  CheckFits("--host-memory", found.automatic ? found.chosen->host_bytes : found.plan->host_arena_bytes, 0, found.budgets.host);
}

// Tells every few seconds how a long search goes, and at its end what it was.
class SearchNotes {
 public:
  explicit SearchNotes(PlanSearch& search) : search_(search) {
    search.progress = [this](size_t plans) {
      if (Clock::now() - told_ < kEvery) return;
      told_ = Clock::now();
      std::cerr << "searching: " << plans << " plans tried in " << Seconds() << " s\n";
    };
  }
  ~SearchNotes() {
    search_.progress = {};
    if (search_.tried().size() > 1) std::cerr << "tried " << search_.tried().size() << " plans in " << Seconds() << " s\n";
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kEvery = std::chrono::seconds(10);
  // To a tenth.
  double Seconds() const { return std::floor(std::chrono::duration<double>(Clock::now() - begin_).count() * 10) / 10; }

  PlanSearch& search_;
  Clock::time_point begin_ = Clock::now(), told_ = begin_;
};

// Of the step that is shown.
void Describe(const StepPlan& step, const PlanKnobs& knobs, double micro_batches, const PlanSearch& search, const MachineRates& rates, PlanFindings& found) {
  found.plan = &step.plan;
  found.paper = PaperBudget(search.canonical(), *step.graph, knobs.training.layout.world, knobs.micro_batch * knobs.sequence / knobs.dispatch.context_parallel,
                            knobs.training.offload.bucket, knobs.training.offload.slots);
  found.cost = EstimateStep(step.plan, rates);
  found.micro_batches = micro_batches;
}

// What was asked for beyond the plan of the flags as they are.
void Search(const PlanFlags& flags, const GivenFlagsOfPlan& given, PlanSearch& search, PlanFindings& found) {
  const SearchNotes notes(search);
  if (found.searched_knobs() && !found.fits && !flags.max_tokens) found.advice = AdviseKnobs(search, flags.choose ? search.fixed() : FlagNames{});
  if (flags.max_tokens) found.longest = flags.choose ? ChooseLongest(search, flags.token_step) : search.LongestSequence(flags.knobs, flags.token_step);
  if (found.searched_knobs() && !(flags.max_tokens && found.longest == nullptr)) found.chosen = flags.choose ? ChooseKnobs(search) : FindFitting(search, flags.knobs);
  if (found.chosen == nullptr) return;
  found.command_line = TrainCommandLine(StrCat("weir train ", ShellWord(flags.model), given.others), search.base(), found.chosen->knobs, given.knobs);
  found.changed = ChangedFlags(given.knobs, flags.knobs, found.chosen->knobs);
}

}  // namespace

int PlanCommand(int argc, const char* const* argv) {
  PlanFlags flags;
  po::variables_map values;
  const std::vector<po::options_description> groups = {Options(flags), flags.knobs.dispatch.Options(), flags.checkpoints.PlanOptions(), GraphOptions(flags.knobs.training), ModelOptions()};
  if (!ParseOptions(argc, argv, "weir plan MODEL.onnx [--sequence N] [--micro-batch N] [--device-memory 141GB] [--max-tokens] [--auto]",
                    groups, {"model"}, values)) {
    return kExitOk;
  }
  flags.checkpoints.Check();
  if (!flags.checkpoints.enabled() && !values["save-async"].defaulted()) throw UsageError("--save-async says how checkpoints of --save-every are written: give both");
  flags.knobs.save_every = flags.checkpoints.save_every;
  flags.knobs.staging = flags.checkpoints.staging();
  Budgets budgets;
  if (!flags.device_memory.empty()) budgets.device = ParseBytes(flags.device_memory, "--device-memory");
  if (!flags.host_memory.empty()) budgets.host = ParseBytes(flags.host_memory, "--host-memory");
  Check(flags, budgets);
  CheckPrecision(flags.knobs.training, flags.device);
  flags.knobs.dispatch.Check(flags.knobs.training.layout.world, flags.knobs.sequence);
  const DeviceKind device = ParseDevice(flags.device);
  for (const std::string& notice : IdleFlags(flags.knobs.training, flags.knobs.dispatch, flags.device, flags.knobs.training.layout.world)) std::cerr << notice << "\n";
  if (!flags.max_tokens && !values["token-step"].defaulted()) std::cerr << "notice: --token-step changes nothing here: it is of --max-tokens\n";
  SetThreadsOfRank(flags.threads, flags.knobs.training.layout.world);  // workspaces of CPU kernels grow with them
  if (device == DeviceKind::kCuda) budgets.beside_arena = kCudaContext + (flags.knobs.training.layout.world > 1 ? kCudaLinks : 0);
  const MachineRates gpu = flags.knobs.training.precision == "bfloat16" ? MachineRates{} : Float32Rates();
  const MachineRates rates = !flags.machine.empty() ? ReadMachine(flags.machine, gpu) : device == DeviceKind::kCuda ? gpu : CpuRates(CpuThreads());
  PassManager passes;
  const auto graph = LoadCanonical(flags.model, values, passes);
  StepPlan step = PlanStepOf(*graph, flags.knobs, device, passes);
  passes.CheckNames();
  const GivenFlagsOfPlan given = Given(groups, values);
  PlanSearch search(*graph, device, flags.knobs, budgets, rates, passes.disabled, FixedOf(given.knobs));
  PlanFindings found{.plan = nullptr, .paper = {}, .cost = {}, .machine = rates.name, .budgets = budgets, .fits = budgets.Hold(step.plan.arena_bytes, step.plan.host_arena_bytes),
                     .searched_length = flags.max_tokens, .token_step = flags.token_step, .advice = {}, .automatic = flags.choose, .command_line = {}, .changed = {}};
  Describe(step, flags.knobs, static_cast<double>(flags.knobs.grad_accumulation), search, rates, found);
  const bool shown_first = !flags.choose && !flags.json;  // a search takes its time
  if (shown_first) {
    PrintPlan(found, std::cout);
    std::cout << std::flush;
  }
  Search(flags, given, search, found);
  if (flags.choose && found.chosen != nullptr) {
    PassManager again;
    again.disabled = passes.disabled;
    step = PlanStepOf(*graph, found.chosen->knobs, device, again);
    Describe(step, found.chosen->knobs, found.chosen->micro_batches, search, rates, found);
  }
  if (flags.json) {
    std::cout << FindingsJson(found, search) << "\n";
  } else {
    if (!shown_first) PrintPlan(found, std::cout);
    PrintSearch(found, search, std::cout);
  }
  if (!flags.html.empty()) {
    CheckOutput(flags.html, {flags.model});
    const int64_t limit = found.longest == nullptr ? flags.knobs.sequence : std::max(flags.knobs.sequence, found.longest->knobs.sequence);
    const bool chosen = flags.choose && found.chosen != nullptr;
    const DrawnKnobs drawn{chosen ? "as chosen by --auto" : "as given", chosen ? found.chosen->knobs : search.base()};
    WriteText(flags.html, PlanPicture(search, drawn, std::min(limit, kMostTokens), StrCat("Bytes of a training step: ", std::filesystem::path(flags.model).filename().string())));
  }
  std::cout << std::flush;
  for (const std::string& notice : DispatchNotices(*step.graph)) std::cerr << notice << "\n";
  CheckVerdict(found);
  return kExitOk;
}

}  // namespace weir
