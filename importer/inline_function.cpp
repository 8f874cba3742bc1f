#include <algorithm>

#include "graph/error.h"
#include "importer/model_reader.h"

namespace weir {
namespace {

constexpr size_t kMaxDepth = 100;  // of calls in calls

std::string Key(const std::string& domain, const std::string& name,
                const std::vector<std::string>& overload) {
  const std::string canonical = domain == "ai.onnx" ? "" : domain;
  return StrCat(canonical, "::", name, "::", overload.empty() ? "" : overload.back());
}

}  // namespace

void ModelReader::IndexFunction(const onnx::FunctionProto& function) {
  Function& entry = functions_[Key(function.domain(), function.name(),
                                   UnknownFields(function, kFunctionOverload))];
  WEIR_CHECK(entry.proto == nullptr, ErrorCode::kInvalidModel, "function '", function.name(),
             "' of domain '", function.domain(), "' is defined twice");
  entry.proto = &function;
  entry.opsets = ReadOpsets(function.opset_import());
  for (const std::string& bytes : UnknownFields(function, kFunctionDefaults)) {
    onnx::AttributeProto attribute;
    WEIR_CHECK(attribute.ParseFromString(bytes), ErrorCode::kInvalidModel, "function '",
               function.name(), "': a default attribute is malformed");
    if (auto value = ReadAttribute(attribute, function.name())) {
      entry.defaults.Set(attribute.name(), std::move(*value));
    }
  }
}

bool ModelReader::InlineFunction(const NodeProto& node, Scope& scope) {
  if (functions_.empty()) return false;
  const auto it =
      functions_.find(Key(node.domain(), node.op_type(), UnknownFields(node, kNodeOverload)));
  if (it == functions_.end()) return false;
  const Function& function = it->second;
  const onnx::FunctionProto& proto = *function.proto;
  WEIR_CHECK(std::find(calls_.begin(), calls_.end(), &proto) == calls_.end(),
             ErrorCode::kInvalidModel, Describe(node), ": function '", proto.name(),
             "' calls itself, directly or through others");
  WEIR_CHECK(calls_.size() < kMaxDepth, ErrorCode::kInvalidModel, Describe(node),
             ": functions are nested more than ", kMaxDepth, " deep");
  WEIR_CHECK(node.input_size() <= proto.input_size() && node.output_size() <= proto.output_size(),
             ErrorCode::kInvalidModel, Describe(node), ": has ", node.input_size(), " inputs and ",
             node.output_size(), " outputs, the function takes ", proto.input_size(), " and gives ",
             proto.output_size());

  Scope body;
  body.opsets = &function.opsets;
  const std::string name =
      node.name().empty() && node.output_size() > 0 ? node.output(0) : node.name();
  body.prefix = scope.prefix + name + "/";
  body.arguments = function.defaults;
  for (const auto& [key, value] : ReadAttributes(node, scope)) body.arguments.Set(key, value);
  const std::vector<Value*> inputs = Inputs(node, scope);
  for (int i = 0; i < proto.input_size(); ++i) {
    const auto slot = static_cast<size_t>(i);
    body.values[proto.input(i)] = slot < inputs.size() ? inputs[slot] : nullptr;
  }
  const std::vector<std::string> results(proto.output().begin(), proto.output().end());
  calls_.push_back(&proto);
  ReadNodes(proto.node(), results, body, StrCat("function '", proto.name(), "'"));
  calls_.pop_back();
  for (int i = 0; i < node.output_size(); ++i) {
    BindOutput(node.output(i), body.Find(proto.output(i)), scope);
  }
  return true;
}

}  // namespace weir
