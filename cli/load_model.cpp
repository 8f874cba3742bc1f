#include "cli/load_model.h"

#include <filesystem>

#include "backend/device.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/non_finite.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "optim/tied_weights.h"
#include "optim/untrained_tensors.h"

namespace weir {

po::options_description ModelOptions() {
  po::options_description group("Model");
  group.add_options()
      ("names", po::value<std::string>(), "safetensors FILE (or its index) whose tensors, matched by value, give "
                                          "parameters their framework names")
      ("freeze", po::value<std::vector<std::string>>(), "parameters to keep frozen, by glob; repeatable")
      ("disable-pass", po::value<std::vector<std::string>>(), "leave a rewrite pass out; repeatable")
      ("print-after", po::value<std::vector<std::string>>(),
       "print the graph on stderr after a pass ('all': after each); repeatable");
  return group;
}

Safetensors ReadWeights(const char* flag, const po::variables_map& values) {
  const auto path = values[flag].as<std::string>();
  WEIR_CHECK(!std::filesystem::is_directory(path), ErrorCode::kInvalidArgument, "--", flag, " '", path, "' is a folder; give the safetensors file in it, or the *.safetensors.index.json of several");
  try {
    return ReadSafetensors(path);
  } catch (Error& error) {
    throw error.AddContext(StrCat("reading --", flag, ", which takes a safetensors file or the index of several"));
  }
}

std::unique_ptr<Graph> LoadCanonical(const std::string& model, const po::variables_map& values, PassManager& passes) {
  const auto list = [&](const char* name) {
    return values.count(name) != 0 ? values[name].as<std::vector<std::string>>() : std::vector<std::string>{};
  };
  for (const std::string& pass : list("disable-pass")) passes.disabled.insert(pass);
  for (const std::string& pass : list("print-after")) passes.print_after.insert(pass);
  CanonicalizeOptions options;
  options.freeze = list("freeze");
  Safetensors names;
  if (values.count("names") != 0) {
    names = ReadWeights("names", values);
    options.names = &names.tensors;
  }
  auto graph = ReadOnnx(model);
  for (const auto& node : graph->nodes()) {
    WEIR_CHECK(node->op() != "AdamW" || node->schema->domain != "ai.weir", ErrorCode::kInvalidModel, "'", model,
               "' is a training graph written by weir rewrite; give the exported model it was made from");
  }
  Canonicalize(*graph, options, passes);
  if (options.names != nullptr) {
    AddTiedNames(*graph, names);
    AddTiedHead(*graph, values["names"].as<std::string>());
    TellHeadApart(*graph, names);
  }
  return graph;
}

std::string NonFiniteWeights(const Graph& canonical) {
  std::string text;
  for (const auto& value : canonical.values()) {
    if (value->parameter == nullptr || (value->role != Role::kParameter && value->role != Role::kConstant)) continue;
    for (const ParameterPiece& piece : value->parameter->initializers) {
      const auto there = canonical.initializers.find(piece.tensor);
      const std::string bad = there == canonical.initializers.end() || !there->second ? "" : NonFiniteIn(piece.tensor, *there->second);
      if (!bad.empty()) text += StrCat("notice: ", bad, " in the model's own file: give one of finite weights\n");
    }
  }
  return text;
}

Safetensors LoadUntrained(const Graph& canonical, const po::variables_map& values) {
  if (values.count("names") == 0) return UntrainedTensors(canonical, nullptr);
  const Safetensors names = ReadWeights("names", values);
  return UntrainedTensors(canonical, &names);
}

DeviceKind ChosenDevice(const std::string& name) {
  const DeviceKind device = ParseDevice(name);
  if (device == DeviceKind::kCuda && CudaDeviceCount() == 0) MakeCudaDevice(0);  // says what is missing
  return device;
}

}  // namespace weir
