#include "optim/tied_weights.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "graph/error.h"
#include "graph/parameter.h"
#include "graph_passes/non_finite.h"
#include "optim/training_session.h"

namespace weir {
namespace {

// None is all zeros.
Dims OffsetOf(const ParameterPiece& piece) {
  return std::ranges::all_of(piece.offset, [](int64_t at) { return at == 0; }) ? Dims{} : piece.offset;
}

bool SameLayout(const ParameterPiece& a, const ParameterPiece& b) {
  return std::tie(a.dims, a.perm, a.deinterleave_axis) == std::tie(b.dims, b.perm, b.deinterleave_axis) && OffsetOf(a) == OffsetOf(b);
}

int64_t DepthOf(const ParameterPiece& piece) { return std::ranges::count(piece.tensor, '.'); }

// Read by the embedding and by something else: the head.
bool IsTied(const Value& parameter) {
  const auto embeds = [](const Use& use) { return use.node->op() == "Embedding"; };
  return std::ranges::any_of(parameter.uses, embeds) && !std::ranges::all_of(parameter.uses, embeds);
}

// What the exporter's wrapper put before the framework's names: "model." of "model.lm_head.weight". Most parameters know; false
// when none does, for the exporter has renamed them.
bool FindPrefix(const Graph& graph, std::string& prefix) {
  std::map<std::string, int> prefixes;
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    for (const ParameterPiece& there : parameter->parameter->initializers) {
      for (const ParameterPiece& named : parameter->parameter->originals) {
        if (there.tensor.ends_with(named.tensor)) ++prefixes[there.tensor.substr(0, there.tensor.size() - named.tensor.size())];
      }
    }
  }
  if (prefixes.empty()) return false;
  prefix = std::ranges::max_element(prefixes, {}, [](const auto& entry) { return entry.second; })->first;
  return true;
}

bool SaysHeadIsTied(const nlohmann::json& config) {
  if (!config.is_object() || !config.contains("architectures") || config.value("tie_word_embeddings", nlohmann::json()) != true) return false;
  const auto& classes = config["architectures"];
  return classes.is_array() && std::ranges::any_of(classes, [](const nlohmann::json& name) {
    return name.is_string() && (name.get<std::string>().ends_with("ForCausalLM") || name.get<std::string>().ends_with("LMHeadModel"));
  });
}

void AddName(ParameterInfo& info, const ParameterPiece& copy_of, const std::string& name) {
  const bool there = std::ranges::any_of(info.originals, [&](const ParameterPiece& piece) { return piece.tensor == name; });
  if (there) return;
  ParameterPiece piece = copy_of;
  piece.tensor = name;
  info.originals.push_back(std::move(piece));
}

// The values of a block in canonical order; what the block does not cover is 0.
std::vector<float> InCanonicalOrder(const ParameterPiece& piece, const Dims& whole, const TensorData& tensor) {
  std::vector<float> values(static_cast<size_t>(NumElements(whole)));
  const auto from = tensor.AsFloats();
  ForEachElement(piece, whole, [&](int64_t a, int64_t b) { values[static_cast<size_t>(b)] = from[static_cast<size_t>(a)]; });
  return values;
}

}  // namespace

std::vector<std::vector<ParameterPiece>> BlocksOf(const std::vector<ParameterPiece>& pieces) {
  std::vector<std::vector<ParameterPiece>> blocks;
  std::map<std::pair<Dims, Dims>, size_t> places;  // by offset and extent
  for (const ParameterPiece& piece : pieces) {
    const auto [place, fresh] = places.try_emplace({OffsetOf(piece), PieceExtent(piece)}, blocks.size());
    if (fresh) blocks.emplace_back();
    blocks[place->second].push_back(piece);
  }
  for (auto& block : blocks) std::ranges::stable_sort(block, std::ranges::greater(), DepthOf);
  return blocks;
}

SavedOnce TiedParameters(const Graph& canonical) {
  SavedOnce tied;
  for (const Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    if (IsTied(*parameter)) tied.insert(parameter->name);
  }
  return tied;
}

std::vector<ParameterPiece> SavedPieces(const Value& parameter, const SavedOnce& once) {
  if (!once.contains(parameter.name)) return SourcePieces(parameter, true);
  std::vector<ParameterPiece> saved;
  for (const auto& block : BlocksOf(SourcePieces(parameter, true))) saved.push_back(block[0]);
  return saved;
}

std::map<std::string, std::string> TiedNames(const Value& parameter) {
  std::map<std::string, std::string> names;
  for (const auto& block : BlocksOf(SourcePieces(parameter, true))) {
    for (const ParameterPiece& piece : block) {
      // A copy in another layout is the exporter's, and no loader's.
      if (piece.tensor != block[0].tensor && SameLayout(piece, block[0])) names[piece.tensor] = block[0].tensor;
    }
  }
  return names;
}

std::map<std::string, std::string> TiedNamesIn(const Safetensors& file) {
  std::map<std::string, std::string> names;
  for (const auto& [name, kept] : file.metadata) {
    if (file.tensors.contains(kept) && !file.tensors.contains(name)) names[name] = kept;
  }
  return names;
}

NamedTensors WithTiedNames(const Safetensors& file) {
  NamedTensors tensors = file.tensors;
  for (const auto& [name, kept] : TiedNamesIn(file)) tensors[name] = file.tensors.at(kept);
  return tensors;
}

void CheckCopiesAgree(const std::vector<ParameterPiece>& block, const Dims& whole, const NamedTensors& weights) {
  const ParameterPiece* first = nullptr;
  for (const ParameterPiece& piece : block) {
    const auto there = weights.find(piece.tensor);
    if (there == weights.end() || there->second == nullptr || there->second->dims() != piece.dims) continue;
    if (first == nullptr) first = &piece;
    const TensorDataPtr& kept = weights.at(first->tensor);
    if (there->second == kept || (SameLayout(piece, *first) && there->second->dtype() == kept->dtype() && std::ranges::equal(there->second->bytes(), kept->bytes()))) continue;
    const auto a = InCanonicalOrder(*first, whole, *kept), b = InCanonicalOrder(piece, whole, *there->second);
    const auto [at, other] = std::ranges::mismatch(a, b);
    WEIR_CHECK(at == a.end(), ErrorCode::kInvalidArgument, "the weights hold '", first->tensor, "' and '", piece.tensor,
               "', which the model has as one tensor, with different values (", *at, " and ", *other, " at element ", at - a.begin(),
               "): give weights that agree or hold one of the two, or a model that keeps them apart");
  }
}

void TellHeadApart(Graph& canonical, const Safetensors& names) {
  std::set<std::string> matched;
  for (const auto& value : canonical.values()) {
    if (value->parameter == nullptr) continue;
    for (const ParameterPiece& piece : value->parameter->originals) matched.insert(piece.tensor);
  }
  for (const Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    const auto& named = parameter->parameter->originals;
    if (!IsTied(*parameter) || named.empty()) continue;
    for (const auto& [name, tensor] : names.tensors) {
      if (matched.contains(name) || tensor->dims() != named[0].dims || !IsFloat(tensor->dtype())) continue;
      const auto kept = names.tensors.at(named[0].tensor)->AsFloats(), other = tensor->AsFloats();
      const auto [one, two] = std::ranges::mismatch(kept, other);
      if (one == kept.end()) continue;
      canonical.notices.push_back(StrCat("'", name, "' of the weights file is ", *two, " at ", PlaceOf(one - kept.begin(), tensor->dims()), " and '", named[0].tensor, "' ", *one,
                                         ": the graph has the second for the embedding and its head; the first is saved as it is"));
    }
  }
}

void AddTiedNames(Graph& canonical, const Safetensors& names) {
  const auto tied = TiedNamesIn(names);
  std::string prefix;
  const bool knows = FindPrefix(canonical, prefix);
  for (Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    ParameterInfo& info = *parameter->parameter;
    const std::vector<ParameterPiece> named = info.originals;
    for (const ParameterPiece& piece : named) {
      for (const auto& [name, kept] : tied) {
        if (kept == piece.tensor) AddName(info, piece, name);
      }
    }
    if (!knows || named.empty() || !IsTied(*parameter)) continue;
    for (const ParameterPiece& there : info.initializers) {
      if (SameLayout(there, named[0]) && there.tensor.starts_with(prefix)) AddName(info, named[0], there.tensor.substr(prefix.size()));
    }
  }
}

void AddTiedHead(Graph& canonical, const std::filesystem::path& file) {
  std::ifstream stream(file.parent_path() / "config.json");
  const auto config = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!SaysHeadIsTied(config)) return;
  for (Value* parameter : canonical.ValuesWithRole(Role::kParameter)) {
    std::vector<ParameterPiece>& named = parameter->parameter->originals;
    if (!IsTied(*parameter) || named.size() != 1) continue;
    if (named[0].tensor.ends_with("embed_tokens.weight") || named[0].tensor.ends_with("wte.weight")) AddName(*parameter->parameter, ParameterPiece(named[0]), "lm_head.weight");
  }
}

std::string LacksTiedName(const Graph& canonical) {
  const SavedOnce tied = TiedParameters(canonical);
  if (tied.empty()) return "notice: --save-tied both changes nothing here: the head is not the embedding\n";
  for (const std::string& name : tied) {
    if (!TiedNames(*canonical.FindValue(name)).empty()) continue;
    return StrCat("notice: --save-tied both: the embedding is the head too, and neither --names nor the model's file has a second name for '", name, "': it is saved once\n");
  }
  return "";
}

}  // namespace weir
