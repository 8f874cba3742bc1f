#include "cli/idle_flags.h"

#include <algorithm>
#include <iostream>

#include "cli/printable.h"
#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/classify_parameters.h"
#include "graph_passes/import_report.h"
#include "optim/export.h"

namespace weir {
namespace {

constexpr size_t kListed = 4;  // names in one notice

// Exporters call a tensor by its module's path, or make a name up for it: val_332, onnx::MatMul_87.
bool IsMadeUp(const std::string& tensor) { return tensor.find('.') == tensor.npos || tensor.starts_with("onnx::"); }

std::string List(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kListed); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kListed ? text + ", ..." : text;
}

void TellMadeUpNames(const Graph& canonical) {
  std::vector<std::string> names;
  const auto parameters = canonical.ValuesWithRole(Role::kParameter);
  for (const Value* parameter : parameters) {
    const std::string& tensor = parameter->parameter->initializers[0].tensor;
    if (IsMadeUp(tensor)) names.push_back(tensor);
  }
  if (names.empty()) return;
  std::cerr << "notice: " << names.size() << " of " << parameters.size() << " parameters have names that the exporter made up (" << List(names)
            << "), and weights.safetensors will hold them under those; --names WEIGHTS.safetensors gives them the framework's\n";
}

// Biases that only choose experts, one number each.
void TellSelectionBiases(const Graph& canonical) {
  const int64_t experts = DescribeModel(canonical).expert_count;
  std::vector<std::string> names;
  for (const FrozenTensor& frozen : FrozenTensors(canonical)) {
    if (frozen.reason == kNoGradient && experts > 1 && NumElements(ToDims(frozen.value->shape)) == experts) names.push_back(frozen.value->name);
  }
  if (names.empty()) return;
  std::cerr << "notice: the biases that choose experts stay as they are in the model: no gradient reaches them, and they are not moved by load, as "
               "balancing without a loss does (" << List(names) << ")\n";
}

std::string Notice(const std::string& flags, const std::string& why) { return StrCat("notice: ", flags, " changes nothing here: ", why); }

}  // namespace

std::vector<std::string> IdleFlags(const TrainingOptions& training, const DispatchFlags& dispatch, const std::string& device, int64_t ranks) {
  std::vector<std::string> notices;
  const auto note = [&](const std::string& flags, const std::string& why) { notices.push_back(Notice(flags, why)); };
  if (training.deterministic && (device == "cpu" || training.precision != "bfloat16")) {
    note("--deterministic", StrCat(device == "cpu" ? "on the CPU" : "in float32", " every run gives the same bits"));
  } else if (training.deterministic && training.pack == "isolate") {
    note("--deterministic", "--pack isolate runs weir's own attention kernels already");
  }
  const StreamDispatchOptions &stream = dispatch.stream, unset;
  std::string lending;
  const auto lends = [&](const char* flag, bool given) {
    if (given) lending += (lending.empty() ? "" : ", ") + std::string(flag);
  };
  lends("--lambda", stream.lambda != unset.lambda);
  lends("--alpha", stream.alpha != unset.alpha);
  lends("--min-rows", stream.min_rows != unset.min_rows);
  lends("--max-foreign", stream.max_foreign != unset.max_foreign);
  if (!lending.empty() && dispatch.expert_parallel == 1) note(lending, "with --expert-parallel 1 no expert is lent");
  if (training.reduce_beside && ranks == 1) note("--reduce-beside", "one rank has no sums over ranks");
  return notices;
}

void TellOfModel(const Graph& canonical, const InitOptions& init, bool named) {
  for (const std::string& notice : canonical.notices) std::cerr << "notice: " << Printable(notice) << "\n";
  if (!named) TellMadeUpNames(canonical);
  TellSelectionBiases(canonical);
  if (const std::string lost = LostInExport(canonical); !lost.empty()) std::cerr << lost << "\n";
  const bool all = std::ranges::all_of(canonical.ValuesWithRole(Role::kParameter), [&](const Value* parameter) { return HasAllData(canonical, *parameter); });
  if (init.enabled && all) std::cerr << Notice("--init normal", "the model has all its weights, and those are trained") << "\n";
}

}  // namespace weir
