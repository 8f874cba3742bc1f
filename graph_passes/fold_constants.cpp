#include "graph_passes/fold_constants.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/parameters.h"
#include "graph_passes/symbolic_content.h"

namespace weir {
namespace {

constexpr int64_t kMaxElements = 1 << 14;

// Constants that folding may read. Weights stay what they are in the file.
bool IsFoldableInput(const Value* value) {
  if (value == nullptr) return true;
  return value->role == Role::kConstant && value->data != nullptr &&
         value->data->elements() <= kMaxElements &&
         (!IsInitializer(value) || value->data->elements() == 1);
}

bool HasKnownContent(const Value& value) {
  return !IsFloat(value.dtype) && value.dtype != DType::kUndefined && value.has_shape &&
         IsConcrete(value.shape) && value.content && IsConcrete(*value.content) &&
         static_cast<int64_t>(value.content->size()) == NumElements(ToDims(value.shape));
}

bool IsSmall(const Value* value) {
  return value == nullptr || (value->has_shape && IsConcrete(value->shape) &&
                              NumElements(ToDims(value->shape)) <= kMaxElements);
}

bool IsRandom(const Node& node) {
  const std::string& op = node.op();
  return op.starts_with("Random") || op == "Bernoulli" || op == "Multinomial" || op == "Dropout";
}

bool CanEvaluate(const Node& node) {
  return node.schema->reference_f32 != nullptr && !node.schema->has_side_effect &&
         !IsRandom(node) && std::all_of(node.inputs.begin(), node.inputs.end(), IsFoldableInput) &&
         std::all_of(node.outputs.begin(), node.outputs.end(), IsSmall);
}

TensorDataPtr FromContent(const Value& value) {
  auto array = Array<float>::Ints(ToDims(value.shape), value.dtype);
  for (size_t i = 0; i < array.i.size(); ++i) array.i[i] = (*value.content)[i].Constant();
  return ToTensorData(array);
}

class Folder {
 public:
  Folder(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  // Whether every output is a constant afterwards; the node is then left without uses.
  bool Fold(Node& node) {
    const auto present = [](const Value* v) { return v != nullptr; };
    if (std::none_of(node.outputs.begin(), node.outputs.end(), present)) return false;
    const bool known = std::all_of(node.outputs.begin(), node.outputs.end(), [](const Value* v) {
      return v == nullptr || HasKnownContent(*v);
    });
    if (known) {
      for (Value* output : node.outputs) {
        if (output != nullptr) Replace(output, FromContent(*output));
      }
      return true;
    }
    return CanEvaluate(node) && FoldByValue(node);
  }

 private:
  void Replace(Value* output, TensorDataPtr data) {
    if (output->uses.empty() && !graph_.IsOutput(output)) return;
    graph_.ReplaceUses(output, graph_.AddConstant(output->name, std::move(data)));
  }

  bool FoldByValue(Node& node) {
    std::vector<Array<float>> arrays;
    arrays.reserve(node.inputs.size());
    std::vector<const Array<float>*> inputs;
    for (const Value* input : node.inputs) {
      if (input == nullptr) {
        inputs.push_back(nullptr);
        continue;
      }
      arrays.push_back(ToArray(*input->data));
      inputs.push_back(&arrays.back());
    }
    try {
      const auto results =
          Evaluate(*node.schema, node.attributes, inputs, static_cast<int>(node.outputs.size()));
      for (size_t i = 0; i < results.size(); ++i) {
        if (node.outputs[i] != nullptr) Replace(node.outputs[i], ToTensorData(results[i]));
      }
      return true;
    } catch (const Error& error) {
      context_.Missed(node, error.message());
      return false;
    }
  }

  Graph& graph_;
  PassContext& context_;
};

}  // namespace

std::string FoldConstants::doc() const {
  return "s = Shape(x float[4,batch]);  n = Gather(s, 0) ==> n = constant 4\n"
         "A node folds when all its inputs are small constants or when inference knows every "
         "element of its\n"
         "outputs. Weights are never read. Problems of all nodes are reported together.";
}

bool FoldConstants::Run(Graph& graph, PassContext& context) {
  std::string problems;
  Folder folder(graph, context);
  for (const auto& node : graph.nodes()) {
    const bool unused = std::all_of(
        node->outputs.begin(), node->outputs.end(),
        [&](const Value* v) { return v == nullptr || (v->uses.empty() && !graph.IsOutput(v)); });
    if (unused && !node->schema->has_side_effect) continue;
    try {
      InferNode(*node);
      InferContent(*node);
    } catch (const Error& error) {
      const bool named = error.message().find(node->source) != std::string::npos;
      problems += StrCat("\n  ", named ? "" : node->source + ": ", error.message());
      continue;
    }
    if (folder.Fold(*node)) ++context.matches;
  }
  WEIR_CHECK(problems.empty(), ErrorCode::kInvalidModel,
             "the model's shapes do not fit together:", problems);
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
