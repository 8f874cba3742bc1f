#include <chrono>
#include <iostream>

#include "cli/commands.h"
#include "cli/load_model.h"
#include "graph_passes/import_report.h"

namespace weir {

int ImportCommand(int argc, const char* const* argv) {
  po::options_description main("Import");
  main.add_options()("model", po::value<std::string>()->required(), "exported ONNX model")(
      "json", po::bool_switch(), "print JSON: the report with every trained and frozen tensor")(
      "log", po::bool_switch(),
      "print on stderr what every pass matched, and near misses with the reason");
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir import MODEL.onnx [--json] [--names WEIGHTS.safetensors]",
                    {main, ModelOptions()}, {"model"}, values)) {
    return kExitOk;
  }
  PassManager passes;
  const auto graph = LoadCanonical(values["model"].as<std::string>(), values, passes);
  passes.CheckNames();
  if (values["log"].as<bool>()) {
    std::cerr << passes.Log();
    for (const PassRecord& record : passes.records()) {
      for (const std::string& miss : record.misses)
        std::cerr << "missed by " << record.name << ": " << miss << "\n";
    }
  }
  const ImportReport report = DescribeModel(*graph);
  std::cout << (values["json"].as<bool>() ? ToJson(report) + "\n" : ToText(report));
  return kExitOk;
}

}  // namespace weir
