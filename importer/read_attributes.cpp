#include "graph/error.h"
#include "importer/model_reader.h"

namespace weir {
namespace {

using onnx::AttributeProto;

// Files from before IR version 2 leave the type out.
AttributeProto::AttributeType TypeOf(const AttributeProto& attribute) {
  if (attribute.type() != AttributeProto::UNDEFINED) return attribute.type();
  if (attribute.has_f()) return AttributeProto::FLOAT;
  if (attribute.has_i()) return AttributeProto::INT;
  if (attribute.has_s()) return AttributeProto::STRING;
  if (attribute.has_t()) return AttributeProto::TENSOR;
  if (attribute.floats_size() > 0) return AttributeProto::FLOATS;
  if (attribute.strings_size() > 0) return AttributeProto::STRINGS;
  return AttributeProto::INTS;
}

template <class T, class Field>
std::vector<T> List(const Field& field) {
  return std::vector<T>(field.begin(), field.end());
}

}  // namespace

std::optional<Attribute> ModelReader::ReadAttribute(const AttributeProto& attribute,
                                                    const std::string& where) {
  switch (TypeOf(attribute)) {
    case AttributeProto::FLOAT:
      return static_cast<double>(attribute.f());
    case AttributeProto::INT:
      return int64_t{attribute.i()};
    case AttributeProto::STRING:
      return attribute.s();
    case AttributeProto::FLOATS:
      return List<double>(attribute.floats());
    case AttributeProto::INTS:
      return List<int64_t>(attribute.ints());
    case AttributeProto::STRINGS:
      return List<std::string>(attribute.strings());
    case AttributeProto::TENSOR: {
      const std::string what = StrCat("attribute '", attribute.name(), "' of ", where);
      const FileTensor tensor = ReadTensor(attribute.t(), external_, model_, what);
      WEIR_CHECK(tensor.data != nullptr, ErrorCode::kInvalidModel, what,
                 ": its data file is missing");
      return tensor.data;
    }
    default:
      return std::nullopt;
  }
}

Attributes ModelReader::ReadAttributes(const NodeProto& node, const Scope& scope) {
  Attributes attributes;
  for (const AttributeProto& attribute : node.attribute()) {
    WEIR_CHECK(!attributes.Has(attribute.name()), ErrorCode::kInvalidModel, Describe(node),
               ": attribute '", attribute.name(), "' is given twice");
    if (attribute.ref_attr_name().empty()) {
      auto value = ReadAttribute(attribute, Describe(node));
      WEIR_CHECK(value.has_value(), ErrorCode::kInvalidModel, Describe(node), ": attribute '",
                 attribute.name(), "' has an unsupported type (",
                 onnx::AttributeProto_AttributeType_Name(attribute.type()), ")");
      attributes.Set(attribute.name(), std::move(*value));
    } else if (const Attribute* argument = scope.arguments.Find(attribute.ref_attr_name())) {
      attributes.Set(attribute.name(), *argument);
    }
  }
  return attributes;
}

void ModelReader::ReadConstant(const NodeProto& node, Scope& scope) {
  WEIR_CHECK(node.output_size() == 1 && node.attribute_size() == 1, ErrorCode::kInvalidModel,
             Describe(node), ": expected one output and one attribute, got ", node.output_size(),
             " and ", node.attribute_size());
  const AttributeProto& attribute = node.attribute(0);
  FileTensor tensor;
  const bool inline_tensor = attribute.name() == "value" && attribute.ref_attr_name().empty();
  if (inline_tensor) {
    WEIR_CHECK(attribute.has_t(), ErrorCode::kInvalidModel, Describe(node),
               ": 'value' is no tensor");
    tensor = ReadTensor(attribute.t(), external_, model_, Describe(node));
  } else {
    const Attributes attributes = ReadAttributes(node, scope);
    const Attribute* value = attributes.Find(attribute.name());
    WEIR_CHECK(value != nullptr, ErrorCode::kInvalidModel, Describe(node), ": attribute '",
               attribute.ref_attr_name(), "' of the function is not given");
    const auto floats = [](Dims dims, const std::vector<double>& v) {
      return TensorData::FromFloats(std::move(dims), std::vector<float>(v.begin(), v.end()));
    };
    const auto count = [](const auto& v) { return Dims{static_cast<int64_t>(v.size())}; };
    if (const auto* data = std::get_if<TensorDataPtr>(value)) {
      tensor.data = *data;
    } else if (const auto* i = std::get_if<int64_t>(value)) {
      tensor.data = TensorData::FromInts({}, {*i});
    } else if (const auto* f = std::get_if<double>(value)) {
      tensor.data = floats({}, {*f});
    } else if (const auto* ints = std::get_if<std::vector<int64_t>>(value)) {
      tensor.data = TensorData::FromInts(count(*ints), *ints);
    } else if (const auto* list = std::get_if<std::vector<double>>(value)) {
      tensor.data = floats(count(*list), *list);
    }
    WEIR_CHECK(tensor.data != nullptr, ErrorCode::kInvalidModel, Describe(node), ": constants of '",
               attribute.name(), "' are not supported");
  }
  scope.values[node.output(0)] = AddTensor(node.output(0), tensor, scope);
}

}  // namespace weir
