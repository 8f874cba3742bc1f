#include "optim/export.h"

#include <iostream>

#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/outputs.h"
#include "graph/error.h"
#include "graph_passes/non_finite.h"
#include "importer/safetensors.h"

namespace weir {

int ExportCommand(int argc, const char* const* argv) {
  po::options_description main("Export");
  main.add_options()
      ("model", po::value<std::string>()->required(), "the ONNX model that was trained")
      ("weights", po::value<std::string>()->required(), "trained weights: RUN/weights.safetensors")
      ("out,o", po::value<std::string>()->required(), "ONNX file to write: the model's own graph, names, layout and dtypes");
  const std::vector<po::options_description> groups = {main, ModelOptions()};
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir export MODEL.onnx --weights RUN/weights.safetensors -o TRAINED.onnx", groups, {"model"},
                    values)) {
    return kExitOk;
  }
  PassManager passes;
  const std::string model = values["model"].as<std::string>(), target = values["out"].as<std::string>();
  std::vector<std::filesystem::path> inputs = {model, values["weights"].as<std::string>()};
  if (values.count("names") != 0) inputs.push_back(values["names"].as<std::string>());
  CheckOutput(target, inputs);
  const auto graph = LoadCanonical(model, values, passes);
  passes.CheckNames();
  const Safetensors weights = ReadWeights("weights", values);
  ExportModel(*graph, model, WithTiedNames(weights), target);
  for (const Value* parameter : graph->ValuesWithRole(Role::kParameter)) {  // it may be to look at what diverged
    for (const ParameterPiece& piece : SourcePieces(*parameter, true)) {
      const auto tensor = weights.tensors.find(piece.tensor);
      const std::string bad = tensor == weights.tensors.end() ? "" : NonFiniteIn(piece.tensor, *tensor->second);
      if (!bad.empty()) std::cerr << "warning: --weights: " << bad << "\n";
    }
  }
  std::cout << "wrote " << target << "\n";
  return kExitOk;
}

}  // namespace weir
