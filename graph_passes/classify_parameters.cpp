#include "graph_passes/classify_parameters.h"

#include <algorithm>
#include <unordered_set>

#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/parameters.h"

namespace weir {
namespace {

using Values = std::unordered_set<const Value*>;

bool IsNondifferentiable(const Node& node, size_t input) {
  const auto& list = node.schema->nondifferentiable_inputs;
  return std::find(list.begin(), list.end(), static_cast<int>(input)) != list.end();
}

// Values that the outputs depend on differentiably. Angles of sines and cosines are positions,
// which no model trains.
Values GradientPaths(const Graph& graph) {
  Values reached(graph.outputs.begin(), graph.outputs.end());
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    const Node& node = **it;
    const bool wanted = std::any_of(node.outputs.begin(), node.outputs.end(), [&](const Value* v) {
      return v != nullptr && IsFloat(v->dtype) && reached.contains(v);
    });
    if (!wanted || node.op() == "Cos" || node.op() == "Sin") continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Value* input = node.inputs[i];
      if (input != nullptr && IsFloat(input->dtype) && !IsNondifferentiable(node, i))
        reached.insert(input);
    }
  }
  return reached;
}

// A vector that is added to or scales the last axis: a bias or a gain.
bool IsVectorOperand(const Node& node, const Value& value) {
  const Value* other = OtherInput(node, &value);
  const auto last = [](const Value* v) { return v->shape.back(); };
  if (other == nullptr || !other->has_shape || other->shape.empty()) return false;
  const bool vector = NumElements(ToDims(value.shape)) == last(&value).Constant();
  return vector && last(&value) == last(other);
}

// Whether this use is one that models train.
bool IsTrainedUse(const Use& use, const Value& value) {
  const Node& node = *use.node;
  const std::string& op = node.op();
  const size_t rank = value.shape.size();
  for (const char* trained :
       {"Linear", "Embedding", "RmsNorm", "LayerNormalization", "Experts", "Attention"}) {
    if (op == trained) return use.index > 0;
  }
  if (op == "MatMul" || op == "Gemm") return rank >= 2 || use.index == 2;
  const bool looked_up =
      use.index == 0 && node.in(1) != nullptr && node.in(1)->role != Role::kConstant;
  if (op == "Gather") return looked_up && rank <= 2;
  if (op == "GatherND") return looked_up && rank == 1;  // one number per expert
  if (op == "Conv") return use.index > 0;
  if (op == "Add" || op == "Sub" || op == "Mul" || op == "Div") return IsVectorOperand(node, value);
  // Through a change of layout to its real use.
  if (op == "Transpose" || op == "Reshape" || op == "Unsqueeze" || op == "Squeeze") {
    const auto& uses = node.out(0)->uses;
    return std::any_of(uses.begin(), uses.end(),
                       [&node](const Use& u) { return IsTrainedUse(u, *node.out(0)); });
  }
  return false;
}

std::string ReasonToFreeze(const Value& value, const Values& paths) {
  if (NumElements(ToDims(value.shape)) <= 1) return "a single number";
  if (!paths.contains(&value)) return kNoGradient;
  const bool trained = std::any_of(value.uses.begin(), value.uses.end(),
                                   [&value](const Use& use) { return IsTrainedUse(use, value); });
  return trained ? ""
                 : StrCat("used by ", value.uses.empty() ? "nothing" : value.uses[0].node->op(),
                          ", which is no weight, bias or gain");
}

}  // namespace

std::string ClassifyParameters::doc() const {
  return "constant float[..] w, used as weight, bias or gain on a path that a gradient takes  ==>  "
         "parameter w\n"
         "Biases that only select experts, tables of angles and single numbers stay constants.";
}

bool ClassifyParameters::Run(Graph& graph, PassContext& context) {
  const Values paths = GradientPaths(graph);
  std::vector<Value*> constants;
  for (const auto& value : graph.values()) {
    if (IsInitializer(value.get()) && !value->uses.empty()) constants.push_back(value.get());
  }
  for (Value* value : constants) {
    if (!ReasonToFreeze(*value, paths).empty()) continue;
    Value* parameter = AsParameter(graph, value);
    if (parameter != value) graph.ReplaceUses(value, parameter);
    ++context.matches;
    context.where.push_back(value->name);
  }
  // Parameters made by earlier passes that no gradient reaches (a head that nothing reads is dead
  // code).
  for (Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    ParameterInfo& info = *parameter->parameter;
    if (info.original_rank != 0) continue;
    const Dims& dims = info.initializers[0].dims;
    const auto wide = std::count_if(dims.begin(), dims.end(), [](int64_t d) { return d != 1; });
    // Exporters fold broadcasts such as [1, heads, 1, 1] into the tensor; the framework's is a
    // vector.
    info.original_rank = dims.size() > 3 && wide <= 1 ? 1 : static_cast<int>(dims.size());
  }
  return context.matches > 0;
}

std::vector<FrozenTensor> FrozenTensors(const Graph& graph) {
  const Values paths = GradientPaths(graph);
  std::vector<FrozenTensor> frozen;
  for (const auto& value : graph.values()) {
    if (!IsInitializer(value.get()) || value->uses.empty()) continue;
    const std::string reason = ReasonToFreeze(*value, paths);
    frozen.push_back({value.get(), reason.empty() ? "--freeze" : reason});
  }
  return frozen;
}

}  // namespace weir
