#include "optim/reference_names.h"

#include <algorithm>

#include "graph/error.h"
#include "graph_passes/match_names.h"

namespace weir {
namespace {

constexpr std::string_view kPrefix = "parameter.";
constexpr size_t kListed = 8;  // names in the error

NamedTensors ParametersOf(const NamedTensors& reference) {
  NamedTensors parameters;
  for (const auto& [name, tensor] : reference) {
    if (name.starts_with(kPrefix)) parameters[name.substr(kPrefix.size())] = tensor;
  }
  return parameters;
}

}  // namespace

void NameAsReference(Graph& canonical, const NamedTensors& reference) {
  const NamedTensors values = ParametersOf(reference);
  if (values.empty()) return;
  const std::vector<Value*> parameters = canonical.ValuesWithRole(Role::kParameter);
  for (Value* parameter : parameters) parameter->parameter->originals.clear();
  MatchNames match(values);
  try {
    PassManager().Run(match, canonical);
  } catch (const Error& error) {  // none has an equal: told below, in words of a reference
    if (error.code() != ErrorCode::kInvalidArgument) throw;
  }
  std::vector<std::string> others;
  for (const Value* parameter : parameters) {
    if (parameter->parameter->originals.empty()) others.push_back(parameter->name);
  }
  std::string list;
  for (size_t i = 0; i < std::min(kListed, others.size()); ++i) list += "\n  " + others[i];
  WEIR_CHECK(others.empty(), ErrorCode::kInvalidArgument, others.size(), " of the model's ", parameters.size(),
             " parameters equal none, or several, of the reference's (parameter.*): it was computed from other weights, or the exporter changed these; write it "
             "from the checkpoint that was exported (models/write_reference.py):", list, others.size() > kListed ? "\n  ..." : "");
}

}  // namespace weir
