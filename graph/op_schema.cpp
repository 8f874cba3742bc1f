#include "graph/op_schema.h"

#include <algorithm>
#include <unordered_map>

#include "graph/arity.h"
#include "graph/error.h"

namespace weir {

#define OP(Name, folder) const OpSchema& Name##Schema();
#include "kernels/ops.def"
#undef OP

std::span<const OpSchema* const> AllOps() {
  static const OpSchema* const ops[] = {
#define OP(Name, folder) &Name##Schema(),
#include "kernels/ops.def"
#undef OP
  };
  return ops;
}

const OpSchema* FindOp(std::string_view name, std::string_view domain) {
  static const auto table = [] {
    std::unordered_map<std::string, const OpSchema*> map;
    for (const OpSchema* op : AllOps()) map[op->domain + "::" + op->name] = op;
    return map;
  }();
  const std::string_view canonical = domain == "ai.onnx" ? "" : domain;
  auto it = table.find(StrCat(canonical, "::", name));
  if (it == table.end() && canonical.empty()) it = table.find(StrCat("ai.weir::", name));
  return it == table.end() ? nullptr : it->second;
}

const OpSchema& GetOp(std::string_view name, std::string_view domain) {
  const OpSchema* op = FindOp(name, domain);
  if (op != nullptr) return *op;
  std::vector<std::string> known;
  for (const OpSchema* candidate : AllOps()) known.push_back(candidate->name);
  const std::string nearest = NearestName(name, known);
  throw Error(ErrorCode::kUnsupportedOp,
              StrCat("no op '", domain.empty() ? "" : StrCat(domain, "::"), name, "'",
                     nearest.empty() ? "" : StrCat("; nearest known op is ", nearest)));
}

const Shape& InferContext::shape(size_t i) const {
  if (!HasShape(i)) Fail(StrCat("input ", i, " has no known shape"));
  return node.in(i)->shape;
}

const std::vector<Dim>* InferContext::content(size_t i) const {
  const Value* value = node.in(i);
  return value != nullptr && value->content.has_value() ? &*value->content : nullptr;
}

void InferContext::SetOutput(size_t i, DType dtype, Shape shape) {
  SetDType(i, dtype);
  if (Value* value = node.out(i)) {
    value->shape = std::move(shape);
    value->has_shape = true;
  }
}

void InferContext::SetDType(size_t i, DType dtype) {
  if (Value* value = node.out(i)) value->dtype = dtype;
}

void InferContext::SetContent(size_t i, std::vector<Dim> content) {
  if (Value* value = node.out(i)) value->content = std::move(content);
}

void InferContext::Fail(const std::string& what) const {
  throw Error(ErrorCode::kInvalidShape, StrCat(node.op(), " ", node.source, ": ", what));
}

void CheckArity(const Node& node) {
  const OpSchema& schema = *node.schema;
  const auto count = static_cast<int>(node.inputs.size());
  WEIR_CHECK(count >= schema.min_inputs && (schema.max_inputs < 0 || count <= schema.max_inputs),
             ErrorCode::kInvalidModel, schema.name, " ", node.source, ": ", count,
             " inputs, expected ", schema.min_inputs, " to ",
             schema.max_inputs < 0 ? std::string("any number") : std::to_string(schema.max_inputs));
  // Required inputs come first; our own ops may leave holes after input 0.
  const int required = schema.domain == "ai.weir" ? std::min(schema.min_inputs, 1) : schema.min_inputs;
  for (int i = 0; i < required; ++i) {
    WEIR_CHECK(node.inputs[static_cast<size_t>(i)] != nullptr, ErrorCode::kInvalidModel, schema.name,
               " ", node.source, ": required input ", i, " is missing");
  }
  const auto results = static_cast<int>(node.outputs.size());
  WEIR_CHECK(schema.max_outputs < 0 || results <= schema.max_outputs, ErrorCode::kInvalidModel,
             schema.name, " ", node.source, ": ", results, " outputs, expected at most ",
             schema.max_outputs);
}

void InferNode(Node& node) {
  CheckArity(node);
  for (Value* output : node.outputs) {
    if (output != nullptr) output->content.reset();
  }
  if (node.schema->infer == nullptr) return;
  InferContext context(node);
  try {
    node.schema->infer(context);
  } catch (Error& error) {
    if (error.message().find(node.op()) == std::string::npos) {
      error.AddContext(StrCat("inferring the shape of ", node.op(), " ", node.source));
    }
    throw;
  }
}

void InferGraph(Graph& graph) {
  for (const auto& node : graph.nodes()) InferNode(*node);
}

}  // namespace weir
