#include "graph_passes/token_wise.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/layer_regions.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr int64_t kNone = -1, kSeveral = -2;

bool DependsOnSequence(const Dim& dim) { return !dim.IsKnown() || dim.Evaluate(1, 2) != dim.Evaluate(1, 1); }

// Where the tokens lie in a value: [batch,sequence,...] or [batch*sequence,...]; kNone in a weight.
int64_t TokenAxis(const Value* value) {
  if (value == nullptr) return kNone;
  if (!value->has_shape) return kSeveral;
  int64_t axis = kNone;
  for (size_t i = 0; i < value->shape.size(); ++i) {
    if (!DependsOnSequence(value->shape[i])) continue;
    if (axis != kNone) return kSeveral;
    axis = static_cast<int64_t>(i);
  }
  return axis;
}

// The same from the right, as broadcasting counts: 1 is the last axis.
int64_t FromRight(const Value* value) {
  const int64_t axis = TokenAxis(value);
  return axis < 0 ? axis : static_cast<int64_t>(value->shape.size()) - axis;
}

bool HoldsSequenceLength(const Value* value) {
  return value != nullptr && value->content && std::ranges::any_of(*value->content, DependsOnSequence);
}

std::string Broadcasting(const Node& node) {
  for (const Value* input : node.inputs) {
    const int64_t place = FromRight(input);
    if (place != kNone && place != FromRight(node.out())) return "its operands hold the sequence at different axes";
  }
  return "";
}

std::string Aligned(const Node& node) {
  for (const Value* input : node.inputs) {
    const int64_t axis = TokenAxis(input);
    if (axis != kNone && axis != TokenAxis(node.in(0))) return "its operands hold the sequence at different axes";
  }
  return "";
}

std::string WorksAlong(const Node& node, std::optional<int64_t> axis) {
  const Value* x = node.in(0);
  if (const std::string why = Aligned(node); !why.empty()) return why;
  const auto along = axis ? NormalAxis(*axis, x->shape.size()) : std::nullopt;
  if (!along) return "the axis it works along is not known";
  return *along == TokenAxis(x) ? "it works along the sequence" : "";
}

template <int64_t kDefault>
std::string AlongAxis(const Node& node) {
  return WorksAlong(node, node.attributes.Int("axis", kDefault));
}

std::string LastAxis(const Node& node) {
  const Value* x = node.in(0);
  return TokenAxis(x) + 1 == static_cast<int64_t>(x->shape.size()) ? "it works along the sequence" : "";
}

// From `axis` to the last.
std::string TrailingAxes(const Node& node) {
  const auto first = NormalAxis(node.attributes.Int("axis", -1), node.in(0)->shape.size());
  return !first || TokenAxis(node.in(0)) >= *first ? "it works along the sequence" : "";
}

std::string ListedAxes(const Node& node, size_t input) {
  const auto axes = IntsOf(node, input, "axes");
  if (!axes) return "it works along all axes";
  for (const int64_t axis : *axes) {
    if (const std::string why = WorksAlong(node, axis); !why.empty()) return why;
  }
  return "";
}

std::string Reduced(const Node& node) { return ListedAxes(node, 1); }

std::string Sliced(const Node& node) {
  if (TokenAxis(node.in(0)) == kNone) return "it cuts a table by the length of the sequence";
  return ListedAxes(node, 3);
}

std::string Summed(const Node& node) {
  const auto axis = IntsOf(node.in(1));
  return WorksAlong(node, axis && axis->size() == 1 ? std::optional(axis->front()) : std::nullopt);
}

// Dims up to and including the tokens' multiply to the same count: their order is kept.
std::string Reshaped(const Node& node) {
  const Value *x = node.in(0), *y = node.out();
  const auto count = [](const Value* value) {
    const auto end = value->shape.begin() + TokenAxis(value) + 1;
    return Product(Shape(value->shape.begin(), end));
  };
  const bool kept = TokenAxis(x) >= 0 && TokenAxis(y) >= 0 && count(x) == count(y);
  return kept ? "" : "it reorders the sequence";
}

std::string Looked(const Node& node) {
  if (TokenAxis(node.in(0)) == kNone) return "";  // by token
  return TokenAxis(node.in(1)) == kNone ? AlongAxis<0>(node) : "it chooses along the sequence";
}

std::string Multiplied(const Node& node) {
  const int64_t a = FromRight(node.in(0)), b = FromRight(node.in(1)), y = FromRight(node.out());
  const bool rows = (a == kNone || a >= 2) && (b == kNone || b >= 3) && (a == kNone || a == y) && (b == kNone || b == y);
  return rows ? "" : "it multiplies positions with each other";
}

std::string Rotated(const Node& node) {
  const bool tables = TokenAxis(node.in(1)) == 0 && TokenAxis(node.in(2)) == 0;
  return TokenAxis(node.in(0)) == 1 && tables ? "" : "its sequence is not at axis 1";
}

std::string TabledFromZero(const Node& node) {
  const auto& length = node.in(0)->content;
  const bool whole = length && length->size() == 1 && length->front() == Dim::Sequence();
  return whole ? "" : "its table is of another length than the sequence";
}

std::string Attended(const Node& node) {
  const bool fits = TokenAxis(node.in(0)) == 1 && TokenAxis(node.in(1)) == 1 && TokenAxis(node.in(2)) == 1;
  return fits ? "" : "its sequence is not at axis 1";
}

std::string Anything(const Node&) { return ""; }

using Rule = std::string (*)(const Node&);
const std::map<std::string, Rule, std::less<>> kRules = {
    {"Embedding", Anything},
    {"Attention", Attended},
    {"RotaryTable", TabledFromZero},
    {"Rotary", Rotated},
    {"Linear", LastAxis},
    {"RmsNorm", LastAxis},
    {"LayerNormalization", TrailingAxes},
    {"RMSNormalization", TrailingAxes},
    {"SimplifiedLayerNormalization", TrailingAxes},
    {"Experts", Aligned},
    {"CrossEntropy", LastAxis},
    {"MatMul", Multiplied},
    {"Softmax", AlongAxis<-1>},
    {"LogSoftmax", AlongAxis<-1>},
    {"TopK", AlongAxis<-1>},
    {"ArgMax", AlongAxis<0>},
    {"ArgMin", AlongAxis<0>},
    {"CumSum", Summed},
    {"ReduceSum", Reduced},
    {"ReduceMean", Reduced},
    {"ReduceMax", Reduced},
    {"ReduceMin", Reduced},
    {"ReduceProd", Reduced},
    {"ReduceL2", Reduced},
    {"ReduceSumSquare", Reduced},
    {"ReduceLogSumExp", Reduced},
    {"Gather", Looked},
    {"GatherElements", AlongAxis<0>},
    {"ScatterElements", AlongAxis<0>},
    {"Split", AlongAxis<0>},
    {"Concat", AlongAxis<0>},
    {"Slice", Sliced},
    {"OneHot", AlongAxis<-1>},
    {"Expand", Broadcasting},
    {"Reshape", Reshaped},
    {"Transpose", Anything},
    {"Identity", Anything},
    {"Dropout", Anything},
    {"ConstantOfShape", Anything},
    {"Shape", Anything},
    {"Size", Anything},
};

// Inputs that say a shape, not a value.
bool IsShapeInput(const Node& node, size_t i) {
  static const std::set<std::pair<std::string, size_t>> slots = {
      {"Reshape", 1}, {"Expand", 1}, {"ConstantOfShape", 0}, {"RotaryTable", 0}};
  return slots.contains({node.op(), i});
}

std::string WhyMixed(const Node& node) {
  bool tokens = false, lengths_only = true;
  for (const Value* output : node.outputs) {
    if (output == nullptr) continue;
    tokens |= TokenAxis(output) != kNone;
    lengths_only &= IsLaunchInts(*output);
  }
  if (lengths_only) return "";  // arithmetic on dims
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (HoldsSequenceLength(node.in(i)) && !IsShapeInput(node, i)) return "it computes with the length of the sequence";
    tokens |= TokenAxis(node.in(i)) != kNone;
  }
  if (!tokens) return "";
  for (const auto* values : {&node.inputs, &node.outputs}) {
    for (const Value* value : *values) {
      if (TokenAxis(value) == kSeveral) return StrCat("'", value->name, "' ", ToString(value->shape), " has the sequence in several axes");
    }
  }
  if (const auto rule = kRules.find(node.op()); rule != kRules.end()) return rule->second(node);
  return node.schema->elementwise ? Broadcasting(node) : "it is not known to treat positions alike";
}

}  // namespace

std::string MixedPositions(const Graph& graph) {
  std::string problems;
  for (const auto& node : graph.nodes()) {
    if (node->phase != Phase::kForward) continue;
    const std::string why = WhyMixed(*node);
    if (why.empty()) continue;
    problems += StrCat("\n  ", node->op(), node->source.empty() ? "" : " ", node->source, ": ", why);
  }
  return problems;
}

}  // namespace weir
