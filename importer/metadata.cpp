#include "importer/metadata.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "graph/error.h"

namespace weir {
namespace {

using Json = nlohmann::json;
constexpr char kGraphKey[] = "weir.graph";
constexpr char kPhaseKey[] = "weir.phase";
constexpr char kSourceKey[] = "weir.source";
constexpr char kExactKey[] = "weir.exact";
constexpr std::array kRoleNames = {"input",      "constant", "parameter",
                                   "activation", "gradient", "optimizer_state"};
constexpr std::array kPhaseNames = {"begin", "forward", "backward", "norm", "update"};

// The enumerator whose name is `text`.
template <class Enum, size_t N>
Enum FromName(const std::array<const char*, N>& names, const std::string& text) {
  const auto it = std::find(names.begin(), names.end(), text);
  WEIR_CHECK(it != names.end(), ErrorCode::kInvalidModel, "weir metadata has the unknown word '",
             text, "'; the file is from another version");
  return static_cast<Enum>(it - names.begin());
}

Json ToJson(const ParameterPiece& piece) {
  return {{"tensor", piece.tensor},
          {"dims", piece.dims},
          {"dtype", DTypeName(piece.dtype)},
          {"perm", piece.perm},
          {"deinterleave_axis", piece.deinterleave_axis},
          {"offset", piece.offset}};
}

// A piece as ForEachElement may trust it: perm a permutation, the block inside the rank it names.
void CheckPiece(const ParameterPiece& piece) {
  const auto rank = std::ssize(piece.dims);
  std::vector<int64_t> axes = piece.perm;
  std::sort(axes.begin(), axes.end());
  bool valid = piece.perm.empty() || std::ssize(axes) == rank;
  for (size_t i = 0; i < axes.size(); ++i) valid = valid && axes[i] == static_cast<int64_t>(i);
  valid = valid && piece.deinterleave_axis >= -1 && piece.deinterleave_axis < rank &&
          piece.dtype != DType::kUndefined && NumElements(piece.dims) >= 0 &&
          std::ranges::all_of(piece.offset, [](int64_t o) { return o >= 0; });
  WEIR_CHECK(valid, ErrorCode::kInvalidModel, "weir metadata describes tensor '", piece.tensor,
             "' wrongly");
}

ParameterPiece PieceFromJson(const Json& json) {
  ParameterPiece piece;
  piece.tensor = json.at("tensor").get<std::string>();
  piece.dims = json.at("dims").get<Dims>();
  piece.dtype = DTypeFromName(json.at("dtype").get<std::string>());
  piece.perm = json.at("perm").get<std::vector<int64_t>>();
  piece.deinterleave_axis = json.at("deinterleave_axis").get<int>();
  piece.offset = json.at("offset").get<Dims>();
  CheckPiece(piece);
  return piece;
}

Json ToJson(const std::vector<ParameterPiece>& pieces) {
  Json list = Json::array();
  for (const ParameterPiece& piece : pieces) list.push_back(ToJson(piece));
  return list;
}

std::vector<ParameterPiece> PiecesFromJson(const Json& list) {
  std::vector<ParameterPiece> pieces;
  for (const Json& json : list) pieces.push_back(PieceFromJson(json));
  return pieces;
}

// Float attributes whose double is not a float32.
Json ExactFloats(const Attributes& attributes) {
  const auto rounded = [](double v) {
    return static_cast<double>(static_cast<float>(v)) != v && v == v;
  };
  Json exact = Json::object();
  for (const auto& [name, value] : attributes) {
    if (const auto* one = std::get_if<double>(&value)) {
      if (rounded(*one)) exact[name] = *one;
    } else if (const auto* list = std::get_if<std::vector<double>>(&value)) {
      if (std::ranges::all_of(*list, [](double v) { return std::isfinite(v); }) &&
          std::ranges::any_of(*list, rounded)) {
        exact[name] = *list;
      }
    }
  }
  return exact;
}

void AddProperty(onnx::NodeProto& proto, const char* key, const std::string& value) {
  onnx::StringStringEntryProto entry;
  entry.set_key(key);
  entry.set_value(value);
  AddUnknownField(proto, kNodeMetadata, entry.SerializeAsString());
}

GraphMetadata FromJson(const Json& json) {
  GraphMetadata metadata;
  for (const auto& [name, role] : json.at("roles").items()) {
    metadata.roles[name] = FromName<Role>(kRoleNames, role.get<std::string>());
  }
  for (const auto& [name, entry] : json.at("parameters").items()) {
    ParameterInfo& parameter = metadata.parameters[name];
    parameter.initializers = PiecesFromJson(entry.at("initializers"));
    parameter.originals = PiecesFromJson(entry.at("originals"));
    parameter.tied_initializers = entry.at("tied").get<std::vector<std::string>>();
    parameter.original_rank = entry.at("rank").get<int>();
    if (entry.contains("shard")) {
      const Json& shard = entry.at("shard");
      parameter.shard = {shard.at("first").get<int64_t>(), shard.at("total").get<int64_t>()};
    }
  }
  metadata.notices = json.at("notices").get<std::vector<std::string>>();
  metadata.stripped = json.at("stripped").get<std::vector<std::string>>();
  return metadata;
}

}  // namespace

void SetMetadata(onnx::ModelProto& model, const GraphMetadata& metadata) {
  Json roles = Json::object(), parameters = Json::object();
  for (const auto& [name, role] : metadata.roles) {
    roles[name] = kRoleNames[static_cast<size_t>(role)];
  }
  for (const auto& [name, parameter] : metadata.parameters) {
    parameters[name] = {{"initializers", ToJson(parameter.initializers)},
                        {"originals", ToJson(parameter.originals)},
                        {"tied", parameter.tied_initializers},
                        {"rank", parameter.original_rank}};
    if (parameter.shard) {
      parameters[name]["shard"] = {{"first", parameter.shard->first},
                                   {"total", parameter.shard->total}};
    }
  }
  auto* entry = model.add_metadata_props();
  entry->set_key(kGraphKey);
  entry->set_value(Json{{"roles", roles},
                        {"parameters", parameters},
                        {"notices", metadata.notices},
                        {"stripped", metadata.stripped}}
                       .dump());
}

std::optional<GraphMetadata> GetMetadata(const onnx::ModelProto& model) {
  for (const auto& entry : model.metadata_props()) {
    if (entry.key() != kGraphKey) continue;
    try {
      return FromJson(Json::parse(entry.value()));
    } catch (const Json::exception& error) {
      throw Error(ErrorCode::kInvalidModel,
                  StrCat("the metadata 'weir.graph' is damaged: ", error.what()));
    }
  }
  return std::nullopt;
}

bool IsWrittenByWeir(const onnx::ModelProto& model) {
  return std::ranges::any_of(model.metadata_props(), [](const auto& entry) { return entry.key() == kGraphKey; });
}

void SetMetadata(onnx::NodeProto& proto, const Node& node) {
  if (node.phase != Phase::kForward) {
    AddProperty(proto, kPhaseKey, kPhaseNames[static_cast<size_t>(node.phase)]);
  }
  if (!node.source.empty()) AddProperty(proto, kSourceKey, node.source);
  const Json exact = ExactFloats(node.attributes);
  if (!exact.empty()) AddProperty(proto, kExactKey, exact.dump());
}

void RestoreMetadata(const onnx::NodeProto& proto, Node& node) {
  for (const std::string& bytes : UnknownFields(proto, kNodeMetadata)) {
    onnx::StringStringEntryProto entry;
    if (!entry.ParseFromString(bytes)) continue;
    if (entry.key() == kPhaseKey) node.phase = FromName<Phase>(kPhaseNames, entry.value());
    if (entry.key() == kSourceKey) node.source = entry.value();
    if (entry.key() != kExactKey) continue;
    try {
      const Json exact = Json::parse(entry.value());
      for (const auto& [name, value] : exact.items()) {
        if (value.is_array()) {
          node.attributes.Set(name, value.get<std::vector<double>>());
        } else {
          node.attributes.Set(name, value.get<double>());
        }
      }
    } catch (const Json::exception& error) {
      throw Error(ErrorCode::kInvalidModel,
                  StrCat("the metadata 'weir.exact' is damaged: ", error.what()));
    }
  }
}

Dim ParseDim(const std::string& text) {
  Dim product = 1;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('*', begin), text.size());
    const std::string factor = text.substr(begin, end - begin);
    begin = end + 1;
    int64_t number = 0;
    const auto [rest, error] =
        std::from_chars(factor.data(), factor.data() + factor.size(), number);
    if (factor == "batch") {
      product = product * Dim::Batch();
    } else if (factor == "sequence") {
      product = product * Dim::Sequence();
    } else if (error == std::errc() && rest == factor.data() + factor.size()) {
      product = product * Dim(number);
    } else {
      return Dim::Unknown();
    }
  }
  return product;
}

}  // namespace weir
