#include "backend/plan.h"

#include <fstream>
#include <iostream>

#include "cli/commands.h"
#include "cli/dispatch_flags.h"
#include "cli/graph_options.h"
#include "cli/load_model.h"
#include "cli/sizes.h"
#include "graph/error.h"
#include "kernels/pipelined_llep/notices.h"

namespace weir {
namespace {

// `budget` < 0: none was given.
void CheckFits(const char* flag, int64_t bytes, int64_t budget, const char* advice) {
  if (budget < 0) return;
  WEIR_CHECK(bytes <= budget, ErrorCode::kBudgetExceeded, "the step needs ", FormatBytes(bytes), ", ", flag, " is ", FormatBytes(budget), "; ",
             advice);
  std::cerr << "fits: " << FormatBytes(bytes) << " of " << FormatBytes(budget) << " " << flag << "\n";
}

}  // namespace

int PlanCommand(int argc, const char* const* argv) {
  int64_t micro_batch = 1, sequence = 4096;
  TrainingOptions training;
  DispatchFlags dispatch;
  po::options_description main("Plan");
  main.add_options()
      ("model", po::value<std::string>()->required(), "exported ONNX model; its weights need not exist")
      ("sequence", po::value<int64_t>(&sequence)->default_value(sequence), "tokens per sequence")
      ("micro-batch", po::value<int64_t>(&micro_batch)->default_value(micro_batch), "sequences per forward and backward")
      ("device", po::value<std::string>()->default_value("cpu"), "whose kernels and scratch the plan has: cpu or cuda; no GPU is needed")
      ("ranks", po::value<int64_t>(&training.layout.world)->default_value(1), "ranks that train together; the bytes are those of rank 0, which holds most")
      ("device-memory", po::value<std::string>(), "budget, such as 24GiB: says whether the step fits (exit code 3 when not)")
      ("host-memory", po::value<std::string>(), "the same for host memory")
      ("json", po::bool_switch(), "print every buffer, step and the ledger as JSON");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir plan MODEL.onnx [--sequence N] [--micro-batch N] [--device-memory 24GiB]",
                    {main, dispatch.Options(), GraphOptions(training), ModelOptions()}, {"model"}, values)) {
    return kExitOk;
  }
  if (micro_batch < 1 || sequence < 1) throw UsageError("--micro-batch and --sequence must be positive");
  const int64_t budget = values.count("device-memory") != 0 ? ParseBytes(values["device-memory"].as<std::string>(), "--device-memory") : -1;
  const int64_t host_budget = values.count("host-memory") != 0 ? ParseBytes(values["host-memory"].as<std::string>()) : -1;
  const DeviceKind device = ParseDevice(values["device"].as<std::string>());
  dispatch.Apply(training);
  PassManager passes;
  const auto graph = LoadCanonical(values["model"].as<std::string>(), values, passes);
  BuildTrainingGraph(*graph, training, passes);
  passes.CheckNames();
  SpecializeShapes(*graph, micro_batch, sequence);
  PlaceOnHost(*graph, training, passes);
  const Plan plan = MakePlan(*graph, device);
  std::cout << (values["json"].as<bool>() ? PlanJson(plan) + "\n" : PlanTable(plan));
  for (const std::string& notice : DispatchNotices(*graph)) std::cerr << notice << "\n";
  CheckFits("--device-memory", plan.arena_bytes, budget, "lower --micro-batch or --sequence, or add --recompute layer, --host-budget, --bucket");
  CheckFits("--host-memory", plan.host_arena_bytes, host_budget, "lower --host-budget, or raise --resident");
  return kExitOk;
}

}  // namespace weir
