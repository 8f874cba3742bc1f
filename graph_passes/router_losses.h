#pragma once
#include "graph_passes/pass.h"

namespace weir {

struct RouterLossOptions {
  double balance = 0, z = 0;  // coefficients; 0 = off
  bool enabled() const { return balance != 0 || z != 0; }
};

// loss  ==>  loss, router_loss = share * (balance * B + z * Z), and the gradient of the two's sum
// B = E * sum_e F_e * P_e: F_e routes to expert e per token (they sum to k), P_e its mean probability, both over the
// tokens of all L layers together, as transformers' load_balancing_loss_func does (Switch Transformer, arXiv:2101.03961).
// Probabilities over all E experts: softmax(x) of the gate's product x, whether the model takes it before its top-k,
// after it, or not at all; for sigmoid routers sigmoid(x) / sum_e sigmoid(x) (DeepSeek-V3, arXiv:2412.19437, eq. 19).
// Z = mean over layers and tokens of logsumexp(x)^2 (ST-MoE, arXiv:2202.08906, eq. 5); softmax routers only.
// share = this micro-batch's valid labels * loss_scale, its part of the step's labels (of their weights, where tokens have any): over micro-batches and ranks the
// step's router loss is the mean of theirs, weighted like the loss itself. B is not linear, so it does depend on how a
// step is cut into micro-batches and ranks.
// F is a count and has no gradient. Throws UnsupportedOp naming every layer whose probabilities are not defined.
// Run it between add_loss and build_gradient.
class RouterLosses : public Pass {
 public:
  RouterLosses(const RouterLossOptions& options, int64_t ignore_index) : options_(options), ignore_index_(ignore_index) {}
  std::string name() const override { return "router_losses"; }
  std::string doc() const override { return "loss ==> loss, router_loss of load balance and z terms, with their gradient"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  RouterLossOptions options_;
  int64_t ignore_index_;
};

}  // namespace weir
