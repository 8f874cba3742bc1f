#include "backend/plan.h"

#include <fstream>
#include <iostream>

#include "cli/commands.h"
#include "cli/graph_options.h"
#include "cli/load_model.h"
#include "cli/sizes.h"
#include "graph/error.h"

namespace weir {

int PlanCommand(int argc, const char* const* argv) {
  int64_t micro_batch = 1, sequence = 4096;
  TrainingOptions training;
  po::options_description main("Plan");
  main.add_options()
      ("model", po::value<std::string>()->required(), "exported ONNX model; its weights need not exist")
      ("sequence", po::value<int64_t>(&sequence)->default_value(sequence), "tokens per sequence")
      ("micro-batch", po::value<int64_t>(&micro_batch)->default_value(micro_batch), "sequences per forward and backward")
      ("device", po::value<std::string>()->default_value("cpu"), "whose kernels and scratch the plan has: cpu or cuda; no GPU is needed")
      ("device-memory", po::value<std::string>(), "budget, such as 24GiB: says whether the step fits (exit code 3 when not)")
      ("json", po::bool_switch(), "print every buffer, step and the ledger as JSON");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir plan MODEL.onnx [--sequence N] [--micro-batch N] [--device-memory 24GiB]",
                    {main, GraphOptions(training), ModelOptions()}, {"model"}, values)) {
    return kExitOk;
  }
  if (micro_batch < 1 || sequence < 1) throw UsageError("--micro-batch and --sequence must be positive");
  const int64_t budget = values.count("device-memory") != 0 ? ParseBytes(values["device-memory"].as<std::string>(), "--device-memory") : -1;
  const DeviceKind device = ParseDevice(values["device"].as<std::string>());
  PassManager passes;
  const auto graph = LoadCanonical(values["model"].as<std::string>(), values, passes);
  BuildTrainingGraph(*graph, training, passes);
  passes.CheckNames();
  SpecializeShapes(*graph, micro_batch, sequence);
  const Plan plan = MakePlan(*graph, device);
  std::cout << (values["json"].as<bool>() ? PlanJson(plan) + "\n" : PlanTable(plan));
  if (budget < 0) return kExitOk;
  WEIR_CHECK(plan.arena_bytes <= budget, ErrorCode::kBudgetExceeded, "the step needs ", FormatBytes(plan.arena_bytes), ", --device-memory is ",
             FormatBytes(budget), "; lower --micro-batch or --sequence");
  std::cerr << "fits: " << FormatBytes(plan.arena_bytes) << " of " << FormatBytes(budget) << "\n";
  return kExitOk;
}

}  // namespace weir
