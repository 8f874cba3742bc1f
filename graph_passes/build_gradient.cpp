#include "graph_passes/build_gradient.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/gradient.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

bool CarriesGradient(const Node& node, size_t i) {
  const Value* input = node.in(i);
  const auto& stops = node.schema->nondifferentiable_inputs;
  return input != nullptr && IsFloat(input->dtype) &&
         std::find(stops.begin(), stops.end(), static_cast<int>(i)) == stops.end();
}

// Which forward nodes lie between a parameter and a loss: the graph's outputs.
class GradientPaths {
 public:
  explicit GradientPaths(const Graph& graph) {
    for (const auto& value : graph.values()) {
      if (value->role == Role::kParameter) origin_[value.get()] = value.get();
    }
    for (const auto& node : graph.nodes()) {
      const Value* origin = nullptr;
      for (size_t i = 0; i < node->inputs.size() && origin == nullptr; ++i) {
        if (CarriesGradient(*node, i)) origin = Origin(node->in(i));
      }
      for (const Value* output : node->outputs) {
        if (origin != nullptr && output != nullptr && IsFloat(output->dtype)) origin_[output] = origin;
      }
    }
    std::unordered_set<const Value*> wanted(graph.outputs.begin(), graph.outputs.end());
    for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
      Node* node = it->get();
      const bool reaches = std::any_of(node->outputs.begin(), node->outputs.end(), [&](const Value* output) {
        return output != nullptr && wanted.contains(output) && Origin(output) != nullptr;
      });
      if (!reaches) continue;
      backwards_.push_back(node);
      for (size_t i = 0; i < node->inputs.size(); ++i) {
        if (CarriesGradient(*node, i)) wanted.insert(node->in(i));
      }
    }
  }

  // A parameter that `value` depends on differentiably, or nullptr.
  const Value* Origin(const Value* value) const {
    const auto it = origin_.find(value);
    return it == origin_.end() ? nullptr : it->second;
  }
  const std::vector<Node*>& backwards() const { return backwards_; }

 private:
  std::unordered_map<const Value*, const Value*> origin_;
  std::vector<Node*> backwards_;  // in reverse execution order
};

struct Gradients {
  std::unordered_map<const Value*, Value*> of;           // activations
  std::unordered_map<const Value*, Value*> accumulator;  // parameters: newest version
};

class Context : public GradientContext {
 public:
  Context(Builder& builder, Node& node, const GradientPaths& paths, Gradients& gradients)
      : GradientContext(builder, node), paths_(paths), gradients_(gradients) {}

  Value* OutputGradient(size_t i) override {
    const auto it = gradients_.of.find(out(i));
    return it == gradients_.of.end() ? nullptr : it->second;
  }
  bool Needs(size_t i) const override { return CarriesGradient(node, i) && paths_.Origin(in(i)) != nullptr; }
  void Add(size_t i, Value* gradient) override {
    if (!Needs(i)) return;
    if (Value* accumulator = Accumulator(i)) {
      return SetAccumulator(i, builder.Op("Accumulate", {accumulator, gradient}));
    }
    Value*& sum = gradients_.of[in(i)];
    sum = sum == nullptr ? gradient : builder.Op("Add", {sum, gradient});
  }
  Value* Accumulator(size_t i) override {
    const auto it = gradients_.accumulator.find(in(i));
    return it == gradients_.accumulator.end() ? nullptr : it->second;
  }
  void SetAccumulator(size_t i, Value* accumulated) override { gradients_.accumulator[in(i)] = accumulated; }

 private:
  const GradientPaths& paths_;
  Gradients& gradients_;
};

void CheckDifferentiable(const GradientPaths& paths) {
  std::string missing;
  for (auto it = paths.backwards().rbegin(); it != paths.backwards().rend(); ++it) {
    const Node& node = **it;
    if (node.schema->gradient != nullptr) continue;
    const Value* origin = nullptr;
    for (size_t i = 0; i < node.inputs.size() && origin == nullptr; ++i) {
      if (CarriesGradient(node, i)) origin = paths.Origin(node.in(i));
    }
    missing += StrCat("\n  ", node.op(), node.source.empty() ? "" : ", from ", node.source,
                      ", on the gradient path from parameter '", origin->name, "' to the loss");
  }
  WEIR_CHECK(missing.empty(), ErrorCode::kUnsupportedOp,
             "these ops have no gradient; freeze the parameters before them or rewrite them:", missing);
}

Value* AddAccumulator(Graph& graph, Builder& builder, const Value& parameter) {
  WEIR_CHECK(parameter.dtype == DType::kFloat32 && parameter.has_shape && IsConcrete(parameter.shape),
             ErrorCode::kInvalidModel, "parameter '", parameter.name, "' has type ", DTypeName(parameter.dtype),
             parameter.has_shape ? ToString(parameter.shape) : "(rank unknown)",
             "; trained parameters are float32 of known shape in a canonical graph");
  Value* accumulator = graph.AddValue(parameter.name + ".grad", Role::kGradient);
  accumulator->dtype = DType::kFloat32;
  accumulator->shape = parameter.shape;
  accumulator->has_shape = true;
  builder.SetSource("parameter '" + parameter.name + "'");
  return builder.Op("ZeroFill", {accumulator});
}

// Gradients made by a backward node are called after the value they belong to.
void NameGradients(Graph& graph, const Node& node, const Gradients& gradients) {
  for (const Value* output : node.outputs) {
    const auto it = gradients.of.find(output);
    if (it == gradients.of.end() || it->second->producer == nullptr) continue;
    const std::string name = output->name + ".grad";
    if (!it->second->name.ends_with(".grad") && graph.FindValue(name) == nullptr) graph.Rename(it->second, name);
  }
}

}  // namespace

bool BuildGradient::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(!graph.outputs.empty(), ErrorCode::kInvalidModel, "a graph without outputs has no loss");
  const GradientPaths paths(graph);
  CheckDifferentiable(paths);

  Gradients gradients;
  Builder begin(graph, graph.nodes().empty() ? nullptr : graph.nodes().front().get());
  begin.SetPhase(Phase::kBegin);
  for (const Value* parameter : graph.ValuesWithRole(Role::kParameter)) {
    gradients.accumulator[parameter] = AddAccumulator(graph, begin, *parameter);
  }

  Builder builder(graph);
  builder.SetPhase(Phase::kBackward);
  if (!paths.backwards().empty()) {
    Value* one = builder.Float(1);
    for (const Value* loss : graph.outputs) gradients.of[loss] = one;
  }
  for (Node* node : paths.backwards()) {
    NameGradients(graph, *node, gradients);
    builder.SetSource(node->source);
    Context gradient(builder, *node, paths, gradients);
    node->schema->gradient(gradient);
    context.Matched(*node);
  }
  return true;
}

}  // namespace weir
