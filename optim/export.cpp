#include "optim/export.h"

#include <algorithm>
#include <set>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/dequantize.h"
#include "importer/importer.h"

namespace weir {

std::string LostInExport(const Graph& canonical) {
  std::set<std::string> lost;
  for (const Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    for (const ParameterPiece& piece : SourcePieces(*parameter, /*framework=*/false)) {
      if (piece.tensor.ends_with(kDequantized)) lost.insert(piece.tensor);
    }
  }
  if (lost.empty()) return "";
  return StrCat(lost.size(), " weights are quantised in the model's file ('", lost.begin()->substr(0, lost.begin()->size() - kDequantized.size()),
                "', ...): float copies are trained and saved in weights.safetensors, and weir export cannot put them back into that file; to export, train a "
                "float export of the same model");
}

namespace {

// A run's file holds the whole model, frozen tensors too; those of earlier versions did not.
std::string WhyLacking(const Graph& canonical, const NamedTensors& weights, const std::vector<std::string>& missing) {
  std::set<std::string> others;
  for (const auto& [name, tensor] : weights) others.insert(name);
  size_t wanted = 0;
  for (const Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    wanted += SourcePieces(*parameter, true).size();
    for (const ParameterPiece& piece : SourcePieces(*parameter, true)) others.erase(piece.tensor);
  }
  std::string list;
  for (const std::string& name : missing) list += "\n  " + name;
  const std::string cause = others.empty() ? "it may be of an earlier weir's run, which left out what it froze: give that run's --freeze as well"
                                           : StrCat("it holds ", others.size(), " that the model has not ('", *others.begin(), "', ...): give the --names of its run, or none if it had none");
  return StrCat("the weights file lacks ", missing.size(), " of the model's ", wanted, " tensors; ", cause, "; missing:", list);
}

}  // namespace

void ExportModel(const Graph& canonical, const std::filesystem::path& source, const NamedTensors& weights,
                 const std::filesystem::path& target) {
  Replacements replacements;
  std::vector<std::string> missing;
  for (const Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    const Dims dims = ToDims(parameter->shape);
    std::vector<float> values(static_cast<size_t>(NumElements(dims)));
    for (const auto& block : BlocksOf(SourcePieces(*parameter, true))) {
      const auto there = std::ranges::find_if(block, [&](const ParameterPiece& piece) { return weights.contains(piece.tensor); });
      if (there == block.end()) {
        missing.push_back(block[0].tensor);
        continue;
      }
      CheckCopiesAgree(block, dims, weights);
      const ParameterPiece& piece = *there;
      const auto it = weights.find(piece.tensor);
      WEIR_CHECK(it->second->dims() == piece.dims, ErrorCode::kInvalidArgument, "weight '", piece.tensor, "' is ",
                 ToString(it->second->dims()), ", the model needs ", ToString(piece.dims));
      const auto from = it->second->AsFloats();
      ForEachElement(piece, dims, [&](int64_t a, int64_t b) { values[static_cast<size_t>(b)] = from[static_cast<size_t>(a)]; });
    }
    replacements.merge(ToSourceLayout(*parameter, values, /*framework=*/false));
    for (const std::string& tied : parameter->parameter->tied_initializers) {
      replacements[tied] = ToSourceLayout(*parameter, values, false).begin()->second;
    }
  }
  if (!missing.empty()) throw Error(ErrorCode::kInvalidArgument, WhyLacking(canonical, weights, missing));
  ExportOnnx(source, target, replacements);
}

}  // namespace weir
