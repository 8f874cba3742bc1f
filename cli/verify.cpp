#include "optim/verify.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/dispatch_flags.h"
#include "cli/graph_options.h"
#include "cli/load_model.h"
#include "cli/plan_search.h"
#include "graph/error.h"
#include "graph_passes/import_report.h"
#include "importer/safetensors.h"
#include "optim/reference_names.h"
#include "optim/twin.h"

namespace weir {
namespace {

// Products of a float64 run: about a minute of one core.
constexpr double kMostFloat64Work = 5e10;

struct VerifyFlags {
  std::string model, reference, trajectory, device;
  VerifyTolerances limits;
  bool twin = false, json = false;
  TwinOptions run;
  DispatchFlags dispatch;
};

std::vector<po::options_description> Options(VerifyFlags& flags) {
  const auto integer = [](int64_t& target) { return po::value<int64_t>(&target)->default_value(target); };
  const auto text = [](std::string& target) { return po::value<std::string>(&target); };
  po::options_description main("Verify against PyTorch");
  main.add_options()
      ("model", text(flags.model)->required(), "exported ONNX model")
      ("reference", text(flags.reference), "safetensors FILE of a PyTorch run: input_ids, labels, weights (of tokens), logits, loss, parameter.*, "
                                           "grad.*, adamw.*, router.* (models/README.md says how to write one)")
      ("trajectory", text(flags.trajectory), "safetensors FILE of a PyTorch training run to follow step by step")
      ("logits-tolerance", Real(flags.limits.logits), "largest absolute difference")
      ("loss-tolerance", Real(flags.limits.loss), "relative")
      ("gradient-tolerance", Real(flags.limits.gradient), "relative L2, of the gradient's own norm; an error of 1.2e-7 (float32's epsilon) of the norm over all gradients is allowed where that is more, beside a stored reference only for gradients below that norm, zero in exact arithmetic")
      ("device", text(flags.device)->default_value("cpu"), "where the model runs: cpu or cuda")
      ("json", po::bool_switch(&flags.json), "print JSON");
  po::options_description twin("Verify streaming: twin and streamed run side by side, then a float64 run where sizes allow");
  twin.add_options()
      ("twin", po::bool_switch(&flags.twin), "on without a reference; with one, on its batch. The flags below say what is streamed; without any, everything is")
      ("batch", integer(flags.run.batch), "sequences of the random batch of a rank")
      ("sequence", integer(flags.run.sequence), "tokens of each")
      ("steps", integer(flags.run.steps), "optimizer steps")
      ("seed", po::value<uint64_t>(&flags.run.seed)->default_value(0), "of the random tokens, and of weights that are absent")
      ("ranks", integer(flags.run.streamed.layout.world), "ranks, as threads of this process (--device cpu)");
  return {main, twin, flags.dispatch.Options(), GraphOptions(flags.run.streamed), ModelOptions()};
}

void Check(const VerifyFlags& flags) {
  const TwinOptions& run = flags.run;
  CheckBatch("--batch", run.batch, run.sequence);
  if (run.steps < 1) throw UsageError("--steps must be positive");
  flags.dispatch.Check(run.streamed.layout.world, flags.reference.empty() ? run.sequence : 0);  // the reference has its own
  if (run.streamed.layout.world > 64) throw UsageError("--ranks must be 1..64: they are threads of this process");
  if (run.streamed.layout.world > 1 && flags.device != "cpu") throw UsageError("--ranks above 1 verify with --device cpu only");
}

// Flags of the twin's run, where there is none, would be left unused.
void CheckUsed(const VerifyFlags& flags, const std::vector<po::options_description>& groups, const po::variables_map& values) {
  if (flags.twin) return;
  const std::string unused = GivenFlags(std::span(groups).subspan(1, groups.size() - 2), values);
  if (unused.empty()) return;
  throw UsageError("a reference is compared with one rank's plain graph, which these flags do not change:" + unused +
                   "; add --twin to run its batch streamed as well, or leave them out");
}

// Tolerances of what is not compared.
void CheckTolerances(const VerifyFlags& flags, const po::variables_map& values, bool has_logits) {
  const auto refuse = [&](const char* tolerance, bool used, const char* why) {
    if (!used && !values[tolerance].defaulted()) throw UsageError(StrCat("--", tolerance, " changes nothing here: ", why, "; leave it out"));
  };
  refuse("logits-tolerance", !flags.reference.empty(), "logits are compared with --reference alone");
  refuse("logits-tolerance", has_logits, "the reference has no logits");
  for (const char* tolerance : {"loss-tolerance", "gradient-tolerance"}) {
    refuse(tolerance, flags.twin || !flags.reference.empty(), "--trajectory has limits of its own");
  }
}

// All that streams, in pieces small enough that each has several.
void StreamEverything(VerifyFlags& flags, int64_t vocabulary) {
  TrainingOptions& streamed = flags.run.streamed;
  streamed.strip = std::max<int64_t>(1, vocabulary / 3);
  streamed.recompute = "layer";
  streamed.host_budget = int64_t{1} << 40;
  streamed.offload = {.bucket = 1000, .slots = 2};
  flags.dispatch.stream.chunk_tokens = DivCeil(flags.run.batch * flags.run.sequence, 3);
}

void UseBatch(const Safetensors& file, int64_t context_parallel, TwinOptions& run) {
  const auto ids = file.tensors.find("input_ids"), labels = file.tensors.find("labels");
  WEIR_CHECK(ids != file.tensors.end() && labels != file.tensors.end() && ids->second->dims().size() == 2, ErrorCode::kInvalidArgument,
             "--twin on a reference needs its input_ids and labels [batch, sequence]");
  const int64_t replicas = run.streamed.layout.world / context_parallel;
  run.batch = ids->second->dims()[0] / replicas;
  run.sequence = ids->second->dims()[1];
  run.input_ids = ids->second->AsInts();
  run.labels = labels->second->AsInts();
  if (const auto weights = file.tensors.find("weights"); weights != file.tensors.end()) {
    run.weights = weights->second->AsFloats();
    run.streamed.token_weights = true;
  }
  WEIR_CHECK(run.batch > 0 && run.batch * replicas == ids->second->dims()[0], ErrorCode::kInvalidArgument, "--ranks=", run.streamed.layout.world,
             " does not divide the ", ids->second->dims()[0], " rows of the reference's batch");
}

std::vector<Comparison> VerifyTwin(const Graph& graph, VerifyFlags& flags) {
  TwinOptions& run = flags.run;
  const ImportReport model = DescribeModel(graph);
  const PlanKnobs none{.micro_batch = run.batch, .sequence = run.sequence, .dispatch = {}, .training = {}};
  const auto knobs = [&] { return PlanKnobs{.micro_batch = run.batch, .sequence = run.sequence, .dispatch = flags.dispatch, .training = run.streamed}; };
  DispatchFlags alone = flags.dispatch;  // more ranks that hold experts or sequences stream nothing by themselves
  alone.expert_parallel = alone.context_parallel = 1;
  if (FlagsBeyond(none, {.micro_batch = run.batch, .sequence = run.sequence, .dispatch = alone, .training = run.streamed}).empty()) {
    StreamEverything(flags, model.vocabulary);
  }
  if (model.moe_layers == 0) flags.dispatch.stream.chunk_tokens = 0;
  std::cerr << "streamed: " << FlagsBeyond(none, knobs()) << "\n";
  flags.dispatch.Apply(run.streamed, run.sequence);
  const double work = static_cast<double>(model.parameters) * static_cast<double>(run.streamed.layout.world * run.batch * run.sequence);
  run.float64 = run.streamed.precision == "float32" && work <= kMostFloat64Work;
  run.loss_tolerance = flags.limits.loss;
  run.gradient_tolerance = flags.limits.gradient;
  if (!run.float64) {
    std::cerr << "no float64 run: " << (run.streamed.precision == "float32" ? "the model is too large for its references" : "it is for --precision float32") << "\n";
  }
  return CompareTwin(graph, run);
}

int Print(const std::vector<Comparison>& all, bool json) {
  if (!json) return PrintComparisons(all, std::cout) ? kExitOk : kExitFailed;
  bool ok = true;
  auto list = nlohmann::ordered_json::array();
  for (const Comparison& c : all) {
    ok = ok && c.ok();
    list.push_back({{"tensor", c.tensor}, {"measure", c.measure}, {"difference", c.difference}, {"tolerance", c.tolerance}, {"ok", c.ok()}});
  }
  std::cout << list.dump(2) << "\n";
  return ok ? kExitOk : kExitFailed;
}

}  // namespace

int VerifyCommand(int argc, const char* const* argv) {
  VerifyFlags flags;
  po::variables_map values;
  const auto groups = Options(flags);
  if (!ParseOptions(argc, argv, "weir verify MODEL.onnx [--reference REF.safetensors] [--names WEIGHTS.safetensors] [--twin]", groups, {"model"}, values)) {
    return kExitOk;
  }
  Check(flags);
  CheckPrecision(flags.run.streamed, flags.device);
  flags.twin = flags.twin || (flags.reference.empty() && flags.trajectory.empty());
  CheckUsed(flags, groups, values);
  CheckTolerances(flags, values, true);
  const DeviceKind device = flags.run.device = ChosenDevice(flags.device);
  PassManager passes;
  const auto graph = LoadCanonical(flags.model, values, passes);
  passes.CheckNames();
  std::vector<Comparison> all;
  const auto add = [&](const std::vector<Comparison>& more) { all.insert(all.end(), more.begin(), more.end()); };
  if (!flags.reference.empty()) {
    const Safetensors file = ReadWeights("reference", values);
    CheckTolerances(flags, values, file.tensors.contains("logits") || file.tensors.contains("logits_2"));
    NameAsReference(*graph, file.tensors);
    add(CompareWithReference(*graph, file.tensors, file.metadata, flags.limits, device));
    if (flags.twin) UseBatch(file, flags.dispatch.context_parallel, flags.run);
  }
  if (!flags.trajectory.empty()) {
    const Safetensors file = ReadWeights("trajectory", values);
    add(CompareTrajectory(*graph, file.tensors, flags.limits, device));
  }
  if (flags.twin) add(VerifyTwin(*graph, flags));
  return Print(all, flags.json);
}

}  // namespace weir
