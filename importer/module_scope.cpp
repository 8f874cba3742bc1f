#include "importer/module_scope.h"

#include <algorithm>
#include <cctype>

namespace weir {
namespace {

constexpr char kScopesKey[] = "pkg.torch.onnx.name_scopes";

// The last but one of "['', 'model', 'model.norm', 'mul_4']"; a repeated call is 'model.norm@1'.
std::optional<std::string> LastModule(const std::string& list) {
  std::vector<std::string> entries;
  for (size_t at = list.find('\''); at != std::string::npos;) {
    const size_t end = list.find('\'', at + 1);
    if (end == std::string::npos) break;
    entries.push_back(list.substr(at + 1, end - at - 1));
    at = list.find('\'', end + 1);
  }
  if (entries.size() < 2) return std::nullopt;
  std::string scope, module = entries[entries.size() - 2];
  bool call = false;
  for (char c : module) {
    call = c == '@' || (call && c != '.');
    if (!call) scope += c;
  }
  return scope;
}

// Module path and leaf of "model.norm.weight".
std::pair<std::string, std::string> Divided(const std::string& name) {
  const size_t point = name.rfind('.');
  if (point == std::string::npos) return {"", ""};
  return {name.substr(0, point), name.substr(point + 1)};
}

// "layers.0.norm" and "layers.11.norm": the same module of two layers.
bool SameButNumbers(const std::string& a, const std::string& b) {
  const auto form = [](const std::string& text) {
    std::string out;
    for (char c : text) {
      if (!std::isdigit(static_cast<unsigned char>(c))) {
        out += c;
      } else if (out.empty() || out.back() != '#') {
        out += '#';
      }
    }
    return out;
  };
  return form(a) == form(b);
}

}  // namespace

std::optional<std::string> ModuleScope(const onnx::NodeProto& node) {
  for (const std::string& bytes : UnknownFields(node, kNodeMetadata)) {
    onnx::StringStringEntryProto entry;
    if (!entry.ParseFromString(bytes) || entry.key() != kScopesKey) continue;
    if (auto scope = LastModule(entry.value())) return scope;
  }
  const std::string& name = node.name();
  if (!name.starts_with('/')) return std::nullopt;
  const size_t last = name.rfind('/');
  std::string scope = last == 0 ? "" : name.substr(1, last - 1);
  std::ranges::replace(scope, '/', '.');
  return scope;
}

ReaderNames::ReaderNames(const std::string& initializer,
                         const std::vector<std::optional<std::string>>& scopes) {
  const auto [path, leaf] = Divided(initializer);
  leaf_ = leaf;
  for (size_t i = 0; i < scopes.size(); ++i) {
    if (!scopes[i] || path.empty()) continue;
    for (size_t start = 0; start < scopes[i]->size();) {
      const std::string module = scopes[i]->substr(start);
      if (module.size() > module_.size() && (path == module || path.starts_with(module + "."))) {
        keeper_ = i;
        module_ = module;
        dropped_ = scopes[i]->substr(0, start);
        rest_ = path.substr(module.size());
      }
      const size_t point = scopes[i]->find('.', start);
      start = point == std::string::npos ? scopes[i]->size() : point + 1;
    }
  }
}

std::string ReaderNames::NameIn(const std::string& scope, const std::string& leaf) const {
  const std::string module = scope.starts_with(dropped_) ? scope.substr(dropped_.size()) : scope;
  const bool alike = !module_.empty() && SameButNumbers(module, module_);
  const bool common = leaf_ == "weight" || leaf_ == "bias";
  const std::string last = alike || common ? leaf_ : leaf;
  return module + (alike ? rest_ : "") + (module.empty() ? "" : ".") + last;
}

}  // namespace weir
