#include "graph_passes/add_loss.h"

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {

void ClaimName(Graph& graph, const std::string& name) {
  Value* taken = graph.FindValue(name);
  if (taken == nullptr) return;
  std::string other = name + ".model";
  while (graph.FindValue(other) != nullptr) other += ".model";
  graph.Rename(taken, other);
}

bool AddLoss::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(graph.outputs.size() == 1, ErrorCode::kInvalidModel, "the loss needs a graph with one output, logits; got ",
             graph.outputs.size(), " outputs; canonicalise the model first");
  Value* logits = graph.outputs[0];
  WEIR_CHECK(IsFloat(logits->dtype) && logits->has_shape && logits->shape.size() >= 2, ErrorCode::kInvalidModel,
             "the graph output '", logits->name, "' must be float logits [batch, sequence, vocabulary]; got ",
             DTypeName(logits->dtype), logits->has_shape ? ToString(logits->shape) : "(rank unknown)");
  for (const char* name : {"labels", "loss_scale", "loss", kTokenWeights}) ClaimName(graph, name);
  const Shape tokens(logits->shape.begin(), logits->shape.end() - 1);
  std::vector<Value*> inputs = {logits, graph.AddInput("labels", DType::kInt64, tokens), graph.AddInput("loss_scale", DType::kFloat32, {})};
  if (weighted_) inputs.push_back(graph.AddInput(kTokenWeights, DType::kFloat32, tokens));
  Value* loss = graph.AddValue("loss");
  Node* node = graph.AddNode(GetOp("CrossEntropy", "ai.weir"), std::move(inputs), {loss}, {{"ignore_index", ignore_index_}});
  node->source = "loss of '" + logits->name + "'";
  InferNode(*node);
  graph.outputs = {loss};
  context.Matched(*node);
  return true;
}

}  // namespace weir
