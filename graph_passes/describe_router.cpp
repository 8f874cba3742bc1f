#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "graph/error.h"
#include "graph_passes/describe_layers.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

std::string Number(double value) {
  std::ostringstream out;
  out.precision(6);
  out << value;
  return out.str();
}

// Nodes between the experts and what the gate reads, in graph order. Stops at norms and other
// layers.
std::vector<const Node*> RouterNodes(const Graph& graph, const Node& experts) {
  std::unordered_set<const Node*> found;
  std::vector<const Node*> stack;
  const auto visit = [&](const Value* value) {
    if (value != nullptr && value->producer != nullptr && found.insert(value->producer).second)
      stack.push_back(value->producer);
  };
  visit(experts.in(1));
  visit(experts.in(2));
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (node->op() == "Linear") continue;
    for (const Value* input : node->inputs) visit(input);
  }
  std::vector<const Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (found.contains(node.get())) nodes.push_back(node.get());
  }
  return nodes;
}

bool FeedsDivisor(const Value* value) {
  return std::any_of(value->uses.begin(), value->uses.end(), [](const Use& use) {
    if (use.node->op() == "Div") return use.index == 1;
    const bool guard =
        use.node->op() == "Add" || use.node->op() == "Clip" || use.node->op() == "Max";
    return guard && FeedsDivisor(use.node->out(0));
  });
}

// Whether the divisor is a sum of the scores, guarded against zero or not.
bool DividesBySum(const Node& div) {
  const Node* divisor = div.in(1)->producer;
  while (divisor != nullptr &&
         (divisor->op() == "Add" || divisor->op() == "Clip" || divisor->op() == "Max")) {
    const Value* next = divisor->in(0)->producer != nullptr ? divisor->in(0) : divisor->in(1);
    divisor = next == nullptr ? nullptr : next->producer;
  }
  return divisor != nullptr && divisor->op() == "ReduceSum";
}

std::string ScalarWords(const Node& node, const char* sign) {
  for (const Value* input : node.inputs) {
    if (const auto scalar = ScalarOf(input)) return sign + Number(*scalar);
  }
  return "";
}

std::string VectorWords(const Node& node) {
  for (const Value* input : node.inputs) {
    if (input->role == Role::kConstant) return "+ frozen bias";
    if (input->role == Role::kParameter) return "+ bias";
  }
  return node.op() == "Add" ? "sum of two" : "difference";
}

std::string Words(const Node& node) {
  const std::string& op = node.op();
  if (op == "Linear") return node.in(2) != nullptr ? "Linear with bias" : "Linear";
  if (op == "TopK") {
    const auto k = IntsOf(node.in(1));
    const bool groups = node.in(0)->has_shape && node.in(0)->shape.size() == 3;
    return StrCat("TopK(", k ? std::to_string((*k)[0]) : "?", groups ? " per group)" : ")");
  }
  if (op == "Reshape") {
    const Shape& to = node.out(0)->shape;
    const bool splits = to.size() == 3 && node.in(0)->shape.size() == 2 && to[1].IsConstant() &&
                        to[1].Constant() > 1 && to[2].IsConstant() && to[2].Constant() > 1;
    return splits ? StrCat(to[1].Constant(), " groups") : "";
  }
  if (op == "Div") {
    if (DividesBySum(node)) return "normalise";
    const std::string scalar = ScalarWords(node, "/ ");
    return scalar.empty() ? "ratio" : scalar;
  }
  if (op == "ReduceSum") return FeedsDivisor(node.out(0)) ? "" : "sum";
  if (op == "ReduceMax") return "max";
  if (op == "Mul") {
    const std::string scalar = ScalarWords(node, "* ");
    return scalar.empty() ? "product" : scalar;
  }
  if (op == "Add" || op == "Sub") {
    if (FeedsDivisor(node.out(0))) return "";
    const std::string scalar = ScalarWords(node, op == "Add" ? "+ " : "- ");
    return scalar.empty() ? VectorWords(node) : scalar;
  }
  if (op == "Clip" || op == "Max") return FeedsDivisor(node.out(0)) ? "" : op;
  if (op == "Where") return "mask";
  if (op == "GatherElements") return "scores of the chosen";
  for (const char* told :
       {"Softmax", "Sigmoid", "Tanh", "Relu", "ArgMax", "Softplus", "Exp", "Sqrt"}) {
    if (op == told) return op;
  }
  return "";
}

}  // namespace

std::string DescribeRouter(const Graph& graph, const Node& experts) {
  std::string text;
  for (const Node* node : RouterNodes(graph, experts)) {
    if (!IsFloat(node->out(0)->dtype) && node->op() != "ArgMax") continue;  // masks and shapes
    const std::string words = Words(*node);
    if (!words.empty()) text += (text.empty() ? "" : " -> ") + words;
  }
  return text;
}

}  // namespace weir
