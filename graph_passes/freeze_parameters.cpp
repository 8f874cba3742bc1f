#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/match_names.h"

namespace weir {
namespace {

std::vector<std::string> NamesOf(const Value& parameter) {
  std::vector<std::string> names = {parameter.name};
  for (const auto* pieces : {&parameter.parameter->initializers, &parameter.parameter->originals}) {
    for (const ParameterPiece& piece : *pieces) names.push_back(piece.tensor);
  }
  return names;
}

}  // namespace

bool MatchesGlob(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p, ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != std::string::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string FreezeParameters::doc() const {
  return "parameter w, its name matches a --freeze pattern  ==>  constant w";
}

bool FreezeParameters::Run(Graph& graph, PassContext& context) {
  std::set<std::string> unused(patterns_.begin(), patterns_.end());
  for (Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    bool matches = false;
    for (const std::string& name : NamesOf(*parameter)) {
      for (const std::string& pattern : patterns_) {
        if (!MatchesGlob(pattern, name)) continue;
        matches = true;
        unused.erase(pattern);
      }
    }
    if (!matches) continue;
    WEIR_CHECK(HasAllData(graph, *parameter), ErrorCode::kInvalidArgument, "cannot freeze '",
               parameter->name,
               "': its bytes are missing, and frozen tensors are never initialised");
    parameter->data =
        TensorData::FromFloats(ToDims(parameter->shape), LoadParameter(graph, *parameter));
    parameter->role = Role::kConstant;
    context.where.push_back(parameter->name);
    ++context.matches;
  }
  if (!unused.empty()) {
    std::string known;
    for (const Value* parameter : graph.ValuesWithRole(Role::kParameter))
      known += "\n  " + parameter->name;
    throw Error(ErrorCode::kInvalidArgument,
                StrCat("--freeze '", *unused.begin(),
                       "' matches no parameter; the parameters are:", known));
  }
  return context.matches > 0;
}

}  // namespace weir
