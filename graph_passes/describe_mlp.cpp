#include <sstream>

#include "graph/error.h"
#include "graph_passes/describe_layers.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

const Value* ThroughViews(const Value* value) {
  while (value->producer != nullptr &&
         (value->producer->op() == "Reshape" || value->producer->op() == "Cast")) {
    value = value->producer->in(0);
  }
  return value;
}

// The one activation that a product of activations and projections starts from, nullptr when
// several do.
const Value* CommonInput(const Value* value, int depth, bool& projected) {
  const Node* node = value->producer;
  if (node == nullptr || depth > 8) return nullptr;
  if (node->op() == "Linear") {
    projected = true;
    return ThroughViews(node->in(0));
  }
  const Value* common = nullptr;
  for (const char* op : {"Mul", "Sigmoid", "Gelu", "Relu", "Tanh", "Erf", "Add", "Clip", "Min",
                         "Max", "Reshape", "Split", "Slice"}) {
    if (node->op() != op) continue;
    for (const Value* input : node->inputs) {
      if (input == nullptr || input->producer == nullptr || !IsFloat(input->dtype)) continue;
      const Value* from = CommonInput(input, depth + 1, projected);
      if (from == nullptr || (common != nullptr && from != common)) return nullptr;
      common = from;
    }
  }
  return common;
}

std::string Number(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

// Follows y through views and scalings to the Add that joins another branch.
const Node* JoiningAdd(const Value* y, const Value*& other) {
  for (int steps = 0; steps < 8 && y->uses.size() == 1; ++steps) {
    const Node* node = y->uses[0].node;
    if (node->op() == "Add") {
      other = OtherInput(*node, y);
      return node;
    }
    if (node->op() != "Reshape" && node->op() != "Mul" && node->op() != "Cast") return nullptr;
    y = node->out(0);
  }
  return nullptr;
}

}  // namespace

std::string DescribeMlp(const Node& down, const Value*& input) {
  input = nullptr;
  const Node* product = ThroughViews(down.in(0))->producer;
  if (down.op() != "Linear" || product == nullptr || product->op() != "Mul") return "";
  bool projected = false;
  input = CommonInput(ThroughViews(down.in(0)), 0, projected);
  if (input == nullptr || !projected) return "";
  return StrCat("width ", ToString(down.in(1)->shape[1]));
}

std::string DescribeExperts(const Node& experts) {
  const Shape &down = experts.in(4)->shape, &ids = experts.in(1)->shape;
  const Attributes& a = experts.attributes;
  std::string text = StrCat(ToString(down[0]), " of width ", ToString(down[2]), ", top-",
                            ToString(ids[1]), ", ", a.String("activation", "swiglu"));
  if (a.Float("alpha", 1) != 1) text += " alpha " + Number(a.Float("alpha", 1));
  if (a.Float("beta", 0) != 0) text += " beta " + Number(a.Float("beta", 0));
  if (a.Has("limit")) text += " limit " + Number(a.Float("limit", 0));
  if (experts.in(5) != nullptr || experts.in(6) != nullptr) text += ", biases";
  return text;
}

std::string DescribeShared(const Graph&, const Node& experts) {
  const Value* other = nullptr;
  if (JoiningAdd(experts.out(0), other) == nullptr || other == nullptr) return "";
  const Value* branch = ThroughViews(other);
  std::string gate;
  if (const Node* mul = Made(branch, "Mul")) {
    for (size_t i = 0; i < 2; ++i) {
      const Node* sigmoid = Made(ThroughViews(mul->in(i)), "Sigmoid");
      const Value* rest = ThroughViews(mul->in(1 - i));
      if (sigmoid == nullptr || Made(rest, "Linear") == nullptr) continue;
      gate = ", gated by Sigmoid";
      branch = rest;
      break;
    }
  }
  const Node* down = Made(branch, "Linear");
  const Value* input = nullptr;
  const std::string width = down == nullptr ? "" : DescribeMlp(*down, input);
  const bool same = input != nullptr && input == ThroughViews(experts.in(0));
  return same ? width + gate : "";
}

}  // namespace weir
