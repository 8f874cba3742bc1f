#include "graph/error.h"
#include "graph/eval.h"
#include "graph/op_schema.h"
#include "graph_passes/pipeline.h"

namespace weir {
namespace {

void Bind(std::vector<Dim>& dims, int64_t batch, int64_t sequence) {
  for (Dim& dim : dims) {
    if (dim.IsKnown()) dim = Dim(dim.Evaluate(batch, sequence));
  }
}

void Bind(Value& value, int64_t batch, int64_t sequence) {
  Bind(value.shape, batch, sequence);
  if (value.content) Bind(*value.content, batch, sequence);
}

bool IsFoldable(const Value& value) {
  return !IsFloat(value.dtype) && value.has_shape && IsConcrete(value.shape) && value.content &&
         IsConcrete(*value.content) &&
         static_cast<int64_t>(value.content->size()) == NumElements(ToDims(value.shape));
}

bool IsFoldable(const Node& node) {
  bool any = false;
  for (const Value* output : node.outputs) {
    if (output == nullptr) continue;
    if (!IsFoldable(*output)) return false;
    any = true;
  }
  return any && !node.schema->has_side_effect;
}

// Every output is replaced by a constant. The node is left without uses.
void Fold(Graph& graph, Node& node) {
  for (Value* output : node.outputs) {
    if (output == nullptr) continue;
    auto array = Array<float>::Ints(ToDims(output->shape), output->dtype);
    for (size_t i = 0; i < array.i.size(); ++i) array.i[i] = (*output->content)[i].Constant();
    Value* constant = graph.AddConstant(output->name, ToTensorData(array));
    constant->content = output->content;  // AddConstant keeps that of short vectors only
    graph.ReplaceUses(output, constant);
  }
}

void CheckConcrete(const Graph& graph) {
  std::string problems;
  for (const auto& value : graph.values()) {
    if (value->has_shape && IsConcrete(value->shape)) continue;
    if (value->producer == nullptr && value->uses.empty() && !graph.IsOutput(value.get())) continue;
    const Node* maker = value->producer;
    problems += StrCat("\n  '", value->name, "' ", value->has_shape ? ToString(value->shape) : "(rank unknown)",
                       maker == nullptr ? "" : " made by ",
                       maker == nullptr ? "" : maker->source.empty() ? maker->op() : maker->source);
  }
  WEIR_CHECK(problems.empty(), ErrorCode::kInvalidShape,
             "shapes that depend on data cannot be planned, expected all shapes to follow from batch and "
             "sequence:",
             problems);
}

}  // namespace

void SpecializeShapes(Graph& graph, int64_t batch, int64_t sequence) {
  WEIR_CHECK(batch > 0 && sequence > 0, ErrorCode::kInvalidArgument, "batch ", batch, " x sequence ",
             sequence, ": both must be at least 1");
  for (const auto& value : graph.values()) Bind(*value, batch, sequence);
  try {
    for (const auto& node : graph.nodes()) {
      InferNode(*node);
      if (IsFoldable(*node)) Fold(graph, *node);
    }
    graph.RemoveDeadNodes(/*drop_values=*/false);
    CheckConcrete(graph);
  } catch (Error& error) {
    error.AddContext(StrCat("binding shapes to batch ", batch, " and sequence ", sequence));
    throw;
  }
}

}  // namespace weir
