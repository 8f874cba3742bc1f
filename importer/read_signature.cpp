#include <algorithm>
#include <unordered_set>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "importer/model_reader.h"

namespace weir {
namespace {

using onnx::TensorShapeProto;

bool Contains(const std::string& text, const char* part) { return text.find(part) != text.npos; }

bool OneOf(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

DimNames NamesOf(const onnx::GraphProto& graph) {
  DimNames names;
  for (const auto& input : graph.input()) {
    const TensorShapeProto& shape = input.type().tensor_type().shape();
    if (input.name() != "input_ids" || shape.dim_size() != 2) continue;
    names.batch = shape.dim(0).dim_param();
    names.sequence = shape.dim(1).dim_param();
  }
  return names;
}

// What a symbolic dim of another input is in terms of the launch: there is no past, so past lengths
// are 0 and totals are the sequence.
Dim SymbolicDim(const std::string& name, const std::string& input, const DimNames& names) {
  if (name.empty()) return Dim::Unknown();
  if (name == names.batch) return Dim::Batch();
  if (name == names.sequence) return Dim::Sequence();
  if (Contains(name, "total") || (Contains(name, "past") && Contains(name, "+"))) {
    return Dim::Sequence();
  }
  if (Contains(name, "past") || input.starts_with("past")) return 0;
  if (OneOf(name, {"batch", "batch_size"})) return Dim::Batch();
  if (OneOf(name, {"sequence", "sequence_length", "seq_len", "seq_length"})) return Dim::Sequence();
  return Dim::Unknown();
}

Dim DimOf(const TensorShapeProto::Dimension& dim, const std::string& input, const DimNames& names) {
  if (!dim.has_dim_value()) return SymbolicDim(dim.dim_param(), input, names);
  WEIR_CHECK(dim.dim_value() >= 0, ErrorCode::kInvalidModel, "input '", input,
             "' has the negative dim ", dim.dim_value());
  return dim.dim_value();
}

Shape ShapeOfInput(const onnx::ValueInfoProto& info, const DimNames& names) {
  const TensorShapeProto& proto = info.type().tensor_type().shape();
  Shape shape;
  for (const auto& dim : proto.dim()) shape.push_back(DimOf(dim, info.name(), names));
  if (info.name() == "input_ids" && shape.size() == 2) {
    if (!proto.dim(0).has_dim_value()) shape[0] = Dim::Batch();
    if (!proto.dim(1).has_dim_value()) shape[1] = Dim::Sequence();
  }
  return shape;
}

}  // namespace

void ModelReader::ReadInputs(Scope& scope) {
  const onnx::GraphProto& proto = model_->graph();
  const DimNames names = NamesOf(proto);
  std::unordered_set<std::string> initialized;
  for (const auto& tensor : proto.initializer()) initialized.insert(tensor.name());
  for (const auto& info : proto.input()) {
    // Initializers listed as inputs are initializers: nobody feeds weights.
    if (initialized.contains(info.name())) continue;
    if (!problems_.Try([&] { ReadInput(info, names, scope); })) AddBroken(info.name(), scope);
  }
}

void ModelReader::ReadInput(const onnx::ValueInfoProto& info, const DimNames& names, Scope& scope) {
  WEIR_CHECK(info.type().has_tensor_type(), ErrorCode::kInvalidModel, "input '", info.name(),
             "' is not a tensor");
  WEIR_CHECK(!info.name().empty() && !scope.Has(info.name()), ErrorCode::kInvalidModel, "input '",
             info.name(), "' is given twice or has no name");
  const auto& type = info.type().tensor_type();
  const DType dtype = DTypeFromOnnx(type.elem_type());
  WEIR_CHECK(dtype != DType::kUndefined, ErrorCode::kInvalidModel, "input '", info.name(),
             "' has the unsupported element type ", type.elem_type());
  if (metadata_) {
    Value* value = graph_->AddInput(info.name(), dtype, {});
    scope.values[info.name()] = value;
    RestoreType(*value);
    return RestoreRole(*value);
  }
  Value* value = graph_->AddInput(info.name(), dtype, ShapeOfInput(info, names));
  value->has_shape = type.has_shape();
  scope.values[info.name()] = value;
  if (info.name() == "input_ids" && IsConcrete(value->shape) && value->has_shape) {
    graph_->notices.push_back(
        StrCat("the model was exported for input_ids of the fixed shape ", ToString(value->shape)));
  }
}

void ModelReader::RestoreRole(Value& value) {
  if (!metadata_) return;
  if (const auto role = metadata_->roles.find(value.name); role != metadata_->roles.end()) {
    WEIR_CHECK(role->second != Role::kActivation && role->second != Role::kInput,
               ErrorCode::kInvalidModel, "weir metadata gives '", value.name,
               "' a role it cannot have");
    value.role = role->second;
    std::erase(graph_->inputs, &value);
  }
  const auto parameter = metadata_->parameters.find(value.name);
  const bool described = parameter != metadata_->parameters.end();
  WEIR_CHECK(described || value.role != Role::kParameter, ErrorCode::kInvalidModel,
             "weir metadata does not describe parameter '", value.name, "'");
  if (described) value.parameter = std::make_unique<ParameterInfo>(parameter->second);
}

void ModelReader::RestoreType(Value& value) const {
  const auto it = value_types_.find(value.name);
  if (it == value_types_.end() || !it->second->has_tensor_type()) return;
  const auto& type = it->second->tensor_type();
  value.dtype = DTypeFromOnnx(type.elem_type());
  value.has_shape = type.has_shape();
  value.shape.clear();
  for (const auto& dim : type.shape().dim()) {
    value.shape.push_back(dim.has_dim_value() ? Dim(dim.dim_value()) : ParseDim(dim.dim_param()));
  }
}

void ModelReader::ReadOutputs(const Scope& scope) {
  for (const auto& info : model_->graph().output()) {
    Value* value = scope.Find(info.name());
    WEIR_CHECK(value != nullptr, ErrorCode::kInvalidModel, "output '", info.name(),
               "' is an absent optional value");
    if (value->name != info.name()) value = NameOutput(value, info.name());
    graph_->outputs.push_back(value);
  }
}

// Inlining may leave an output under the name it had inside a function: it gets the file's name
// back.
Value* ModelReader::NameOutput(Value* value, const std::string& name) {
  if (Value* other = graph_->FindValue(name)) graph_->Rename(other, FreeName(name));
  if (value->role == Role::kActivation && !graph_->IsOutput(value)) {
    graph_->Rename(value, name);
    return value;
  }
  Value* copy = graph_->AddValue(name);
  graph_->AddNode(GetOp("Identity"), {value}, {copy})->source = StrCat("output '", name, "'");
  return copy;
}

std::string ModelReader::FreeName(const std::string& name) const {
  std::string candidate = name;
  for (int i = 2; graph_->FindValue(candidate) != nullptr; ++i) candidate = StrCat(name, "#", i);
  return candidate;
}

void ModelReader::BindOutput(const std::string& name, Value* value, Scope& scope) {
  if (!name.empty()) scope.values[name] = value;
}

std::optional<Shape> ModelReader::ShapeOf(const std::string& name, const Value& value) const {
  if (value.has_shape) return value.shape;
  // Inner names of functions and branches are not those of the model's value_info.
  const auto it = value.name == name ? value_types_.find(name) : value_types_.end();
  if (it == value_types_.end() || !it->second->tensor_type().has_shape()) return std::nullopt;
  Shape shape;
  for (const auto& dim : it->second->tensor_type().shape().dim()) {
    shape.push_back(dim.has_dim_value() && dim.dim_value() >= 0 ? Dim(dim.dim_value()) : Dim());
  }
  return shape;
}

}  // namespace weir
