#include "graph_passes/sink_transposes.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "graph_passes/match.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

using Perm = std::vector<int64_t>;

Perm PermOf(const Node& transpose) {
  Perm perm = transpose.attributes.Ints("perm");
  for (size_t i = transpose.in(0)->shape.size(); perm.empty() && i-- > 0;)
    perm.push_back(static_cast<int64_t>(i));
  return perm;
}

Perm Inverse(const Perm& perm) {
  Perm inverse(perm.size());
  for (size_t a = 0; a < perm.size(); ++a)
    inverse[static_cast<size_t>(perm[a])] = static_cast<int64_t>(a);
  return inverse;
}

// Whether the order of the axes longer than 1 stays: the elements then keep their order.
bool MovesUnitsOnly(const Shape& shape, const Perm& perm) {
  int64_t last = -1;
  for (int64_t axis : perm) {
    if (shape[static_cast<size_t>(axis)] == Dim(1)) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

// Ops that treat every element alike, whatever its place.
bool IsPointwise(const Node& node) {
  static const std::unordered_set<std::string> ops = {
      "Add", "Sub",        "Mul",   "Div",   "Pow",   "Min",      "Max",     "Neg",
      "Abs", "Exp",        "Log",   "Sqrt",  "Relu",  "Tanh",     "Sigmoid", "Gelu",
      "Erf", "Reciprocal", "Clip",  "Swish", "Cast",  "Softplus", "Where",   "Sin",
      "Cos", "Sign",       "Floor", "Not",   "IsNaN", "LeakyRelu"};
  return node.schema->domain.empty() && ops.contains(node.op());
}

class Sinker {
 public:
  Sinker(Graph& graph, Node& node) : graph_(graph), node_(node), builder_(At(graph, node)) {}

  bool Run() {
    const std::string& op = node_.op();
    if (!node_.out()->has_shape) return false;
    if (op == "Reshape") return IntoReshape();
    if (op == "Concat") return ThroughConcat();
    first_ = Made(node_.in(0), "Transpose");
    if (op == "Expand") return ThroughExpand();
    if (op == "Transpose" && node_.schema->domain.empty()) return OfReshape();
    if (!Is(node_, "Split") && !Is(node_, "Slice")) return ThroughElementwise();
    if (first_ == nullptr) return false;
    perm_ = PermOf(*first_);
    return op == "Split" ? ThroughSplit() : ThroughSlice();
  }

 private:
  static bool KeepsLast(const Perm& perm) {
    return perm.back() == static_cast<int64_t>(perm.size()) - 1;
  }

  bool Emit(std::vector<Value*> inputs, Attributes attributes) {
    Value* y = builder_.Op(node_.op(), std::move(inputs), std::move(attributes));
    graph_.ReplaceUses(node_.out(), TransposeBy(builder_, y, perm_));
    return true;
  }

  // f(T(x), T(y), scalar) ==> T(f(x, y, scalar));  RmsNorm and Linear when the last axis stays
  bool ThroughElementwise() {
    const bool last_only = node_.op() == "RmsNorm" || node_.op() == "Linear";
    if (node_.outputs.size() != 1 || !(IsPointwise(node_) || last_only)) return false;
    perm_.clear();
    std::vector<Value*> inputs;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      Value* input = node_.inputs[i];
      const Node* transpose = Made(input, "Transpose");
      const bool scalar =
          input == nullptr || (ScalarOf(input) && input->shape.size() <= 1) || (last_only && i > 0);
      if (scalar) {
        inputs.push_back(input);
        continue;
      }
      if (transpose == nullptr || (!perm_.empty() && PermOf(*transpose) != perm_)) return false;
      perm_ = PermOf(*transpose);
      inputs.push_back(transpose->in(0));
    }
    if (perm_.empty() || (last_only && !KeepsLast(perm_))) return false;
    return Emit(inputs, node_.attributes);
  }

  bool ThroughSplit() {
    const auto axis = static_cast<size_t>(node_.attributes.Int("axis", 0));
    std::vector<Value*> inputs = node_.inputs;
    inputs[0] = first_->in(0);
    Attributes attributes = node_.attributes;
    attributes.Set("axis", perm_[axis]);
    const auto parts =
        builder_.Ops("Split", inputs, static_cast<int>(node_.outputs.size()), attributes);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (node_.outputs[i] != nullptr)
        graph_.ReplaceUses(node_.outputs[i], TransposeBy(builder_, parts[i], perm_));
    }
    return true;
  }

  bool ThroughSlice() {
    auto axes = IntsOf(node_.in(3));
    if (!axes) return false;
    for (int64_t& axis : *axes) {
      const auto normal = NormalAxis(axis, perm_.size());
      if (!normal) return false;
      axis = perm_[static_cast<size_t>(*normal)];
    }
    std::vector<Value*> inputs = node_.inputs;
    inputs[0] = first_->in(0);
    inputs[3] = builder_.Ints(*axes);
    return Emit(inputs, node_.attributes);
  }

  bool ThroughConcat() {
    std::vector<Value*> inputs;
    for (const Value* input : node_.inputs) {
      const Node* transpose = Made(input, "Transpose");
      if (transpose == nullptr || (!perm_.empty() && PermOf(*transpose) != perm_)) return false;
      perm_ = PermOf(*transpose);
      inputs.push_back(transpose->in(0));
    }
    const auto axis = NormalAxis(node_.attributes.Int("axis", 0), perm_.size());
    return axis && Emit(inputs, {{"axis", perm_[static_cast<size_t>(*axis)]}});
  }

  bool ThroughExpand() {
    if (first_ == nullptr || !first_->in(0)->has_shape) return false;
    perm_ = PermOf(*first_);
    const Shape& to = node_.out()->shape;
    if (to.size() != perm_.size() || !IsKnown(to) || !IsKnown(first_->in(0)->shape)) return false;
    const Perm inverse = Inverse(perm_);
    Shape before;
    for (int64_t axis : inverse) before.push_back(to[static_cast<size_t>(axis)]);
    const auto target = ExpandTarget(first_->in(0)->shape, before);
    Value* shape = target ? builder_.Ints(*target) : ShapeTensor(builder_, before);
    return shape != nullptr && Emit({first_->in(0), shape}, {});
  }

  // Reshape(T(x)) ==> Reshape(x) when T only moves axes of size 1
  bool IntoReshape() {
    const Node* transpose = Made(node_.in(0), "Transpose");
    if (transpose == nullptr || !transpose->in(0)->has_shape || !IsKnown(node_.out()->shape))
      return false;
    Value* x = transpose->in(0);
    if (!IsKnown(x->shape) || !MovesUnitsOnly(x->shape, PermOf(*transpose))) return false;
    graph_.ReplaceUses(node_.out(), ReshapeTo(builder_, x, node_.out()->shape));
    return true;
  }

  // T(Reshape(x)) ==> Reshape(x) when T only moves axes of size 1
  bool OfReshape() {
    const Node* reshape = Made(node_.in(0), "Reshape");
    if (reshape == nullptr || !reshape->in(0)->has_shape || !IsKnown(node_.out()->shape))
      return false;
    Value* x = reshape->in(0);
    if (!IsKnown(x->shape) || !MovesUnitsOnly(reshape->out()->shape, PermOf(node_))) return false;
    graph_.ReplaceUses(node_.out(), ReshapeTo(builder_, x, node_.out()->shape));
    return true;
  }

  Graph& graph_;
  Node& node_;
  Builder builder_;
  const Node* first_ = nullptr;
  Perm perm_;
};

}  // namespace

std::string SinkTransposes::doc() const {
  return "Add(Transpose(x), Transpose(y)) ==> Transpose(Add(x, y));  Split, Slice, Concat, Expand, "
         "RmsNorm likewise\n"
         "Transpose(Reshape(x)) that only moves axes of size 1 ==> Reshape(x)";
}

bool SinkTransposes::Run(Graph& graph, PassContext& context) {
  for (const auto& node : graph.nodes()) {
    if (node->out(0) == nullptr || (node->out(0)->uses.empty() && !graph.IsOutput(node->out(0))))
      continue;
    if (Sinker(graph, *node).Run()) context.Matched(*node);
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
