#include "optim/verify.h"

#include <iostream>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/load_model.h"
#include "graph/error.h"
#include "importer/safetensors.h"

namespace weir {

int VerifyCommand(int argc, const char* const* argv) {
  po::options_description main("Verify");
  VerifyTolerances limits;
  main.add_options()
      ("model", po::value<std::string>()->required(), "exported ONNX model")
      ("reference", po::value<std::string>(), "safetensors FILE of a PyTorch run: input_ids, labels, logits, loss, grad.*, "
                                              "adamw.*, router.* (models/README.md says how to write one)")
      ("trajectory", po::value<std::string>(), "safetensors FILE of a PyTorch training run to follow step by step")
      ("logits-tolerance", Real(limits.logits), "largest absolute difference")
      ("loss-tolerance", Real(limits.loss), "relative")
      ("gradient-tolerance", Real(limits.gradient), "relative L2")
      ("device", po::value<std::string>()->default_value("cpu"), "where the model runs: cpu or cuda")
      ("json", po::bool_switch(), "print JSON");
  const std::vector<po::options_description> groups = {main, ModelOptions()};
  po::variables_map values;
  if (!ParseOptions(argc, argv, "weir verify MODEL.onnx --reference REF.safetensors [--names WEIGHTS.safetensors]", groups,
                    {"model"}, values)) {
    return kExitOk;
  }
  if (values.count("reference") == 0 && values.count("trajectory") == 0) {
    throw UsageError("nothing to compare with: give --reference FILE or --trajectory FILE");
  }
  const DeviceKind device = ChosenDevice(values["device"].as<std::string>());
  PassManager passes;
  const auto graph = LoadCanonical(values["model"].as<std::string>(), values, passes);
  passes.CheckNames();
  std::vector<Comparison> all;
  if (values.count("reference") != 0) {
    const Safetensors file = ReadSafetensors(values["reference"].as<std::string>());
    all = CompareWithReference(*graph, file.tensors, file.metadata, limits, device);
  }
  if (values.count("trajectory") != 0) {
    const Safetensors file = ReadSafetensors(values["trajectory"].as<std::string>());
    const auto more = CompareTrajectory(*graph, file.tensors, limits, device);
    all.insert(all.end(), more.begin(), more.end());
  }
  if (!values["json"].as<bool>()) return PrintComparisons(all, std::cout) ? kExitOk : kExitFailed;
  bool ok = true;
  auto list = nlohmann::ordered_json::array();
  for (const Comparison& c : all) {
    ok = ok && c.ok();
    list.push_back({{"tensor", c.tensor}, {"measure", c.measure}, {"difference", c.difference}, {"tolerance", c.tolerance}, {"ok", c.ok()}});
  }
  std::cout << list.dump(2) << "\n";
  return ok ? kExitOk : kExitFailed;
}

}  // namespace weir
