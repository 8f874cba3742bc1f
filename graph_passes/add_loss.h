#pragma once
#include "graph_passes/pass.h"

namespace weir {

// graph (input_ids) => (logits)
//   ==>
// graph (input_ids, labels, loss_scale) => (loss)   with loss = CrossEntropy(logits, labels, loss_scale)
// labels[b,s] is the target of position s; loss_scale is 1 / valid labels of the whole step, so micro-batch
// losses and gradients add up to the mean over tokens (never a mean of means).
// With `weighted` a fourth input, token_weights float32 like labels, says what each position's loss counts for; loss_scale is
// then 1 / the sum of the weights of the step's valid labels, as torch's cross_entropy means with weights.
class AddLoss : public Pass {
 public:
  explicit AddLoss(int64_t ignore_index, bool weighted = false) : ignore_index_(ignore_index), weighted_(weighted) {}
  std::string name() const override { return "add_loss"; }
  std::string doc() const override { return "logits ==> CrossEntropy(logits, labels, loss_scale[, token_weights])"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  int64_t ignore_index_;
  bool weighted_;
};

inline constexpr const char* kTokenWeights = "token_weights";

// Frees `name` for the training graph's interface: a model value of that name gains the suffix ".model".
void ClaimName(Graph& graph, const std::string& name);

}  // namespace weir
