#include "graph_passes/canonical_shapes.h"

#include "graph_passes/match.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

bool IsLaunchInteger(const Value& value) {
  return value.role == Role::kActivation && !value.uses.empty() && value.content &&
         value.has_shape && value.shape.size() <= 1 && !IsFloat(value.dtype) &&
         value.dtype != DType::kBool && IsKnown(*value.content) && !IsConcrete(*value.content);
}

Value* Compute(Builder& builder, const Value& like) {
  Value* tensor = ShapeTensor(builder, *like.content);
  if (tensor != nullptr && like.shape.empty())
    tensor = builder.Op("Reshape", {tensor, builder.Ints({})});
  if (tensor == nullptr || like.dtype == DType::kInt64) return tensor;
  return builder.Op("Cast", {tensor}, {{"to", int64_t{OnnxNumber(like.dtype)}}});
}

}  // namespace

std::string CanonicalShapes::doc() const {
  return "s = Shape(embedding);  b = Gather(s, [0]);  Reshape(x, Concat(b, [-1], [64]))\n"
         "  ==> Reshape(x, Concat(Shape(input_ids), [64]))";
}

bool CanonicalShapes::Run(Graph& graph, PassContext& context) {
  std::vector<Value*> integers;
  for (const auto& value : graph.values()) {
    if (IsLaunchInteger(*value)) integers.push_back(value.get());
  }
  Node* front = graph.nodes().empty() ? nullptr : graph.nodes().front().get();
  Builder builder(graph, front);
  builder.SetStem("launch");
  builder.SetSource("launch shape");
  for (Value* integer : integers) {
    Value* computed = Compute(builder, *integer);
    if (computed == nullptr) continue;
    graph.ReplaceUses(integer, computed);
    ++context.matches;
  }
  for (const auto& node : graph.nodes()) {
    if (Is(*node, "Reshape") && node->in(1)->content) node->attributes.Erase("allowzero");
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
