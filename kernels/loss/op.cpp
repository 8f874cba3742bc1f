// The losses of `_loss` exports; passes turn them into ai.weir::CrossEntropy for training.
#include "graph/op_schema.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/loss/reference.h"

namespace weir {

LossReduction ReductionOf(const Attributes& attributes) {
  const std::string name = attributes.String("reduction", "mean");
  if (name == "none") return LossReduction::kNone;
  if (name == "sum") return LossReduction::kSum;
  WEIR_CHECK(name == "mean", ErrorCode::kInvalidModel, "reduction = '", name,
             "', expected none, sum or mean");
  return LossReduction::kMean;
}

namespace {

void InferLoss(InferContext& c) {
  for (const auto& [name, value] : c.node.attributes) {  // label_smoothing, say: another loss
    if (name != "reduction" && name != "ignore_index") c.Fail(StrCat("attribute '", name, "' is unknown, expected reduction and ignore_index"));
  }
  const DType dtype = c.in(0)->dtype;
  c.SetDType(0, dtype);
  if (ReductionOf(c.node.attributes) != LossReduction::kNone) {
    c.SetOutput(0, dtype, {});
  } else if (c.HasShape(1)) {
    c.SetOutput(0, dtype, c.shape(1));
  }
  if (c.node.out(1) == nullptr) return;
  c.SetDType(1, dtype);
  if (c.HasShape(0)) c.SetOutput(1, dtype, c.shape(0));
}

CaseInput Labels(Dims dims, std::vector<int64_t> v) {
  return {.kind = CaseInput::Kind::kInts, .dims = std::move(dims), .ints = std::move(v)};
}

std::vector<OpCase> LossCases() {
  const auto reduction = [](const char* name) {
    return Attributes{{"reduction", std::string(name)}};
  };
  Attributes ignore = reduction("mean");
  ignore.Set("ignore_index", int64_t{-100});
  return {{"mean", {{.dims = {4, 7}}, Labels({4}, {0, 6, 3, 3})}},
          {"ignored",
           {{.dims = {4, 7}},
            Labels({4}, {0, -100, 3, -100}),
            {.kind = CaseInput::Kind::kPositive, .dims = {7}}},
           ignore},
          {"none", {{.dims = {2, 3, 2}}, Labels({2, 2}, {0, 1, 2, 0})}, reduction("none")},
          {"sum", {{.dims = {2, 3, 2}}, Labels({2, 2}, {0, 1, 2, 0})}, reduction("sum")}};
}
std::vector<OpCase> CrossEntropyCases() {
  auto cases = LossCases();
  cases.push_back({"log_prob", {{.dims = {3, 5}, .scale = 30}, Labels({3}, {4, 0, 2})}, {}, 2});
  return cases;
}

}  // namespace

const OpSchema& NegativeLogLikelihoodLossSchema() {
  static const OpSchema schema{
      .name = "NegativeLogLikelihoodLoss",
      .doc =
          "loss = -w[t] * logp[n, t], 0 for ignore_index; reduction none, sum or mean (weighted).\n"
          "inputs logp [N,C,...], targets int [N,...], weights? [C].  Source: ONNX "
          "NegativeLogLikelihoodLoss",
      .min_inputs = 2,
      .max_inputs = 3,
      .infer = InferLoss,
      WEIR_REFERENCE(NegativeLogLikelihoodLossReference),
      .cases = LossCases,
      .nondifferentiable_inputs = {1, 2}};
  return schema;
}
WEIR_REFERENCE_CPU_KERNEL(NegativeLogLikelihoodLoss)

const OpSchema& SoftmaxCrossEntropyLossSchema() {
  static const OpSchema schema{.name = "SoftmaxCrossEntropyLoss",
                               .doc =
                                   "NegativeLogLikelihoodLoss of log-softmax(scores) along axis 1; "
                                   "output 1 (optional): log_prob.\n"
                                   "inputs scores [N,C,...], labels int [N,...], weights? [C].  "
                                   "Source: ONNX SoftmaxCrossEntropyLoss",
                               .min_inputs = 2,
                               .max_inputs = 3,
                               .max_outputs = 2,
                               .infer = InferLoss,
                               WEIR_REFERENCE(SoftmaxCrossEntropyLossReference),
                               .cases = CrossEntropyCases,
                               .nondifferentiable_inputs = {1, 2}};
  return schema;
}
WEIR_REFERENCE_CPU_KERNEL(SoftmaxCrossEntropyLoss)

}  // namespace weir
