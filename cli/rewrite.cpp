#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "cli/commands.h"
#include "cli/graph_options.h"
#include "cli/load_model.h"
#include "cli/outputs.h"
#include "graph/error.h"
#include "graph/text.h"
#include "importer/importer.h"

namespace weir {
namespace {

po::options_description Flags() {
  po::options_description group("Rewrite");
  group.add_options()
      ("model", po::value<std::string>()->required(), "exported ONNX model")
      ("out,o", po::value<std::string>()->required(), "file to write: .onnx (custom operators in domain ai.weir) or .txt")
      ("inference", po::bool_switch(), "stop at the canonical graph, without loss, backward and optimizer")
      ("batch", po::value<int64_t>(), "bind the rows per micro-batch; with --sequence")
      ("sequence", po::value<int64_t>(), "bind the tokens per row; with --batch")
      ("log", po::value<std::string>(), "FILE for one line per pass with its matches");
  return group;
}

po::options_description OptimizerFlags(TrainingOptions& training) {
  po::options_description group("Optimizer (AdamW)");
  group.add_options()
      ("decay", po::value<std::string>(&training.decay)->default_value(training.decay), "matrices, dims or all")
      ("weight-decay", Real(training.weight_decay), "of AdamW")
      ("max-norm", Real(training.max_norm), "gradient norm to clip to; 0 = none");
  return group;
}

void CheckTraining(const TrainingOptions& training) {
  if (!(training.max_norm >= 0 && std::isfinite(training.max_norm))) throw UsageError("--max-norm must be finite and not negative");
  if (!(training.weight_decay >= 0 && std::isfinite(training.weight_decay))) throw UsageError("--weight-decay must be finite and not negative");
}

void Write(const Graph& graph, const std::filesystem::path& path) {
  if (path.extension() != ".txt") return WriteOnnx(graph, path);
  WriteText(path, ToText(graph));
}

}  // namespace

int RewriteCommand(int argc, const char* const* argv) {
  TrainingOptions training;
  const std::vector<po::options_description> groups = {Flags(), OptimizerFlags(training), GraphOptions(training), ModelOptions()};
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir rewrite MODEL.onnx -o OUT.onnx [--inference] [--batch B --sequence S]", groups, {"model"},
                    values)) {
    return kExitOk;
  }
  const std::string unused = values["inference"].as<bool>() ? GivenFlags(std::span(groups).subspan(1, 2), values) : "";
  if (!unused.empty()) throw UsageError("--inference stops before the training graph, which these flags are of:" + unused + "; leave one or the other out");
  CheckTraining(training);
  if (values.count("batch") != values.count("sequence")) throw UsageError("--batch and --sequence bind the launch together: give both");
  if (training.host_budget != 0 && values.count("batch") == 0) throw UsageError("--host-budget counts bytes: give --batch and --sequence");
  for (const char* launch : {"batch", "sequence"}) {
    if (values.count(launch) != 0 && values[launch].as<int64_t>() < 1) throw UsageError(StrCat("--", launch, " must be positive"));
  }
  const std::filesystem::path out = values["out"].as<std::string>();
  if (out.extension() != ".onnx" && out.extension() != ".txt") throw UsageError("--out '" + out.string() + "' must end in .onnx or .txt");
  std::vector<std::filesystem::path> inputs = {values["model"].as<std::string>()};
  if (values.count("names") != 0) inputs.push_back(values["names"].as<std::string>());
  CheckOutput(out, inputs);
  if (values.count("log") != 0) CheckOutput(values["log"].as<std::string>(), inputs);
  PassManager passes;
  const auto graph = LoadCanonical(values["model"].as<std::string>(), values, passes);
  if (!values["inference"].as<bool>()) BuildTrainingGraph(*graph, training, passes);
  passes.CheckNames();
  if (values.count("batch") != 0) {
    SpecializeShapes(*graph, values["batch"].as<int64_t>(), values["sequence"].as<int64_t>());
    PlaceOnHost(*graph, training, passes);
  }
  Write(*graph, out);
  if (values.count("log") != 0) {
    std::ofstream log(values["log"].as<std::string>());
    log << passes.Log();
    WEIR_CHECK(log.good(), ErrorCode::kIoError, "cannot write '", values["log"].as<std::string>(), "'");
  }
  std::cout << passes.Log() << out.string() << ": " << graph->nodes().size() << " nodes, "
            << graph->ValuesWithRole(Role::kParameter).size() << " parameters\n";
  return kExitOk;
}

}  // namespace weir
