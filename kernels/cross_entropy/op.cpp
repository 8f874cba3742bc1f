#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/common/dims.h"
#include "kernels/common/saved_output.h"
#include "kernels/cross_entropy/reference.h"
#include "kernels/cross_entropy/token_weights.h"

namespace weir {
namespace {

void InferCrossEntropy(InferContext& c) {
  c.SetOutput(0, DType::kFloat64, {});
  c.SetDType(1, DType::kFloat32);
  if (c.in(1)->dtype != DType::kInt64 && c.in(1)->dtype != DType::kUndefined) {
    c.Fail(StrCat("C2: labels must be int64; got ", DTypeName(c.in(1)->dtype)));
  }
  if (!c.HasShape(0)) return;
  const Shape& logits = c.shape(0);
  if (logits.empty() || (logits.back().IsConstant() && logits.back().Constant() < 1)) {
    c.Fail(StrCat("C1: logits ", ToString(logits), " must end in a vocabulary of at least 1"));
  }
  const Shape tokens(logits.begin(), logits.end() - 1);
  if (c.HasShape(1)) {
    bool same = c.shape(1).size() == tokens.size();
    for (size_t i = 0; same && i < tokens.size(); ++i) same = !Differ(c.shape(1)[i], tokens[i]);
    if (!same) {
      c.Fail(StrCat("C2: labels ", ToString(c.shape(1)), " must be logits ", ToString(logits),
                    " without the last axis"));
    }
  }
  CheckTokenWeights(c, 3, 1, "C4");
  c.SetOutput(1, DType::kFloat32, tokens);
}

void InferCrossEntropyGradient(InferContext& c) { c.SetOutput(0, c.in(0)->dtype, c.shape(0)); }

void CrossEntropyGradient(GradientContext& g) {
  if (g.OutputGradient(0) == nullptr || !g.Needs(0)) return;
  Value* lse = SavedOutput(g, 1, "lse");
  std::vector<Value*> inputs = {g.in(0), g.in(1), lse, g.in(2), g.OutputGradient(0)};
  if (g.in(3) != nullptr) inputs.push_back(g.in(3));
  g.Add(0, g.builder.Op("CrossEntropyGradient", inputs, g.node.attributes));
}

Cost CrossEntropyCost(const Node& n) {
  const double count = static_cast<double>(NumElements(ToDims(n.in(0)->shape)));
  return {4 * count, 4 * count};
}

OpCase Case(std::string name, Dims logits, std::vector<int64_t> labels, Attributes attributes = {},
            int outputs = 1) {
  Dims tokens(logits.begin(), logits.end() - 1);
  return {std::move(name),
          {{.dims = std::move(logits)},
           {.kind = CaseInput::Kind::kInts, .dims = std::move(tokens), .ints = std::move(labels)},
           {.kind = CaseInput::Kind::kFloats, .floats = {0.125}}},
          std::move(attributes),
          outputs,
          outputs == 1};
}

OpCase Weighted(std::string name, Dims logits, std::vector<int64_t> labels, std::vector<double> weights, int outputs = 1) {
  const Dims tokens(logits.begin(), logits.end() - 1);
  OpCase weighted = Case(std::move(name), std::move(logits), std::move(labels), {}, outputs);
  weighted.in.push_back({.kind = CaseInput::Kind::kFloats, .dims = tokens, .floats = std::move(weights)});
  return weighted;
}

std::vector<OpCase> CrossEntropyCases() {
  return {Weighted("weighted", {2, 3, 7}, {0, 6, -100, 2, 2, 5}, {0.5, 3, 2, 0, 1, 0.25}),
          Weighted("weighted_saved", {3, 2051}, {2050, -100, 2048}, {1.5, 4, 0.125}, 2),
          Case("tiny", {2, 3, 7}, {0, 6, 3, 2, 2, 5}),
          Case("some_ignored", {5, 11}, {-100, 10, -100, 0, 4}),
          Case("all_ignored", {2, 2, 5}, {-100, -100, -100, -100}),
          Case("ignored_class", {4, 5}, {2, 1, 0, 2}, {{"ignore_index", int64_t{2}}}),
          Case("one_class", {3, 1}, {0, 0, 0}),
          Case("two_classes", {3, 2}, {1, 0, -100}),
          Case("no_tokens", {0, 5}, {}),
          Case("leaf", {2, 2048}, {2047, 0}),
          Case("over_leaves", {3, 4099}, {4098, 2048, 17}),
          Case("saved", {2, 2, 2051}, {2050, -100, 2048, 1}, {}, 2)};
}

}  // namespace

const OpSchema& CrossEntropySchema() {
  static const OpSchema schema{
      .name = "CrossEntropy",
      .domain = "ai.weir",
      .doc =
          R"(lse[n] = log(sum_v exp(logits[n,v]));  loss = loss_scale * sum over labels[n] != ignore_index of
weights[n] * (lse[n] - logits[n,labels[n]])
logits [...,V] float, labels [...] int64, loss_scale float32 scalar, weights (optional, 1 each) [...] float32; loss
float64 scalar; output 1 (optional) lse [...] float32, saved for backward; attribute ignore_index (-100). All labels
ignored: loss 0. A token of weight 0 is as one with the ignored label.
Per token (max, sum) of each vocabulary leaf of 2048 columns in float32, combined in leaf order;
tokens summed in float64 in order. Deterministic for any threads.
C1 V >= 1. C2 labels int64, shaped as logits without the last axis. C3 every label in [0,V) or
ignore_index, else an error with position and value. C4 weights float32, shaped as labels; that they are finite and
not negative is checked where they are read.
Cost: 4NV flop, one read of logits.  Source: torch.nn.functional.cross_entropy (reduction sum).)",
      .min_inputs = 3,
      .max_inputs = 4,
      .min_outputs = 1,
      .max_outputs = 2,
      .infer = InferCrossEntropy,
      WEIR_REFERENCE(CrossEntropyReference),
      .gradient = CrossEntropyGradient,
      .cost = CrossEntropyCost,
      .cases = CrossEntropyCases,
      .nondifferentiable_inputs = {1, 2, 3}};
  return schema;
}

const OpSchema& CrossEntropyGradientSchema() {
  static const OpSchema schema{
      .name = "CrossEntropyGradient",
      .domain = "ai.weir",
      .doc =
          R"(dlogits[n,v] (=) (exp(logits[n,v] - lse[n]) - [v = labels[n]]) * loss_scale * dloss * weights[n], 0 where
labels[n] = ignore_index or weights[n] = 0
inputs logits, labels, lse, loss_scale, dloss float32 scalar, weights (optional, 1 each); output dlogits like logits, which it
may overwrite. float32 elementwise; deterministic.
Cost: 3NV flop, one read and one write of logits.  Source: derivative of CrossEntropy.)",
      .min_inputs = 5,
      .max_inputs = 6,
      .infer = InferCrossEntropyGradient,
      WEIR_REFERENCE(CrossEntropyGradientReference),
      .cost =
          [](const Node& n) {
            return Cost{CrossEntropyCost(n).flops, 2 * CrossEntropyCost(n).bytes};
          },
      .elementwise = true};
  return schema;
}

}  // namespace weir
