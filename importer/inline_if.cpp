#include "graph/error.h"
#include "graph/op_schema.h"
#include "importer/model_reader.h"

namespace weir {
namespace {

// The input of merged decoders that chooses between the graph with past and the one without.
constexpr char kCacheSwitch[] = "use_cache_branch";
constexpr int64_t kMaxElements = 64;  // of the tensors a condition is worked out from
constexpr int kMaxDepth = 32;

std::optional<Array<float>> KnownContent(const Value& value) {
  if (!value.content || !value.has_shape || !IsConcrete(value.shape)) return std::nullopt;
  if (NumElements(ToDims(value.shape)) != std::ssize(*value.content)) return std::nullopt;
  Array<float> array = Array<float>::Ints(ToDims(value.shape), value.dtype);
  for (size_t k = 0; k < array.i.size(); ++k) {
    if (!(*value.content)[k].IsConstant()) return std::nullopt;
    array.i[k] = (*value.content)[k].Constant();
  }
  return array;
}

// The value where it is known before launch.
std::optional<Array<float>> Known(const Value* value, int depth) {
  if (value == nullptr || depth > kMaxDepth) return std::nullopt;
  if (value->role == Role::kInput && value->name == kCacheSwitch) {
    return Array<float>::Ints({1}, DType::kBool, 0);
  }
  if (value->data != nullptr && value->data->elements() <= kMaxElements)
    return ToArray(*value->data);
  if (auto content = KnownContent(*value)) return content;
  const Node* producer = value->producer;
  if (producer == nullptr || producer->outputs.size() != 1 || producer->inputs.empty()) {
    return std::nullopt;
  }
  std::vector<Array<float>> arrays;
  arrays.reserve(producer->inputs.size());
  std::vector<const Array<float>*> inputs;
  for (const Value* input : producer->inputs) {
    if (input == nullptr) {
      inputs.push_back(nullptr);
      continue;
    }
    auto array = Known(input, depth + 1);
    if (!array) return std::nullopt;
    arrays.push_back(std::move(*array));
    inputs.push_back(&arrays.back());
  }
  return Evaluate(*producer->schema, producer->attributes, inputs, 1)[0];
}

}  // namespace

std::optional<bool> ConstantCondition(const Value* condition) {
  try {
    const auto known = Known(condition, 0);
    if (!known || known->i.size() != 1) return std::nullopt;
    return known->i[0] != 0;
  } catch (const Error&) {
    return std::nullopt;  // not evaluable here; the caller reports the If
  }
}

bool ModelReader::InlineIf(const NodeProto& node, Scope& scope) {
  const std::vector<Value*> inputs = Inputs(node, scope);
  const std::optional<bool> taken =
      inputs.size() == 1 ? ConstantCondition(inputs[0]) : std::nullopt;
  if (!taken) {
    SkipUnknown(node, scope, "only conditions known before launch are supported");
    return true;
  }
  const std::string wanted = *taken ? "then_branch" : "else_branch";
  const onnx::GraphProto* branch = nullptr;
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == wanted && attribute.has_g()) branch = &attribute.g();
  }
  WEIR_CHECK(branch != nullptr, ErrorCode::kInvalidModel, Describe(node), ": has no ", wanted);
  WEIR_CHECK(branch->output_size() == node.output_size(), ErrorCode::kInvalidModel, Describe(node),
             ": has ", node.output_size(), " outputs, its ", wanted, " gives ",
             branch->output_size());
  WEIR_CHECK(branch->input_size() == 0, ErrorCode::kInvalidModel, Describe(node), ": its ", wanted,
             " has inputs");

  Scope body;
  body.outer = &scope;
  body.opsets = scope.opsets;
  body.prefix = scope.prefix;
  body.arguments = scope.arguments;
  ReadInitializers(*branch, body);
  std::vector<std::string> results;
  for (const auto& output : branch->output()) results.push_back(output.name());
  ReadNodes(branch->node(), results, body, StrCat(wanted, " of ", Describe(node)));
  for (int i = 0; i < node.output_size(); ++i) {
    BindOutput(node.output(i), body.Find(branch->output(i).name()), scope);
  }
  graph_->stripped.push_back(StrCat(Describe(node), ": ", wanted, " taken"));
  return true;
}

void ModelReader::DropCacheSwitch() {
  Value* value = graph_->FindValue(kCacheSwitch);
  if (value == nullptr || value->role != Role::kInput || !value->uses.empty()) return;
  graph_->RemoveValue(value);
  graph_->stripped.push_back(StrCat("input ", kCacheSwitch, ": the branch without past is taken"));
}

}  // namespace weir
