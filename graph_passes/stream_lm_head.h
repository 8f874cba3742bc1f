#pragma once
#include "graph_passes/pass.h"

namespace weir {

// logits = Linear(x, w)
// loss, lse = CrossEntropy(logits, labels, scale)
// dlogits = CrossEntropyGradient(logits, labels, lse, scale, 1)
// dx = MatMul(dlogits, w)
// acc' = LinearWeightGradient(x, dlogits, acc)
//   ==>
// loss, dx, acc' = RingDtp<strip>(x, w, labels, scale, acc)
// Weights of tokens, where CrossEntropy and its gradient have them, come last.
// In a training graph, before its optimizer. dx or acc' may be missing (nothing below the head, or
// the head itself, is not trained). Loss and gradients keep their bits. Throws InvalidArgument with
// the reasons when nothing matches.
class StreamLmHead : public Pass {
 public:
  // `leaf`: columns of one (max, sum) pair; another than the default changes rounding.
  explicit StreamLmHead(int64_t strip, int64_t leaf = kDefaultLeaf) : strip_(strip), leaf_(leaf) {}
  static constexpr int64_t kDefaultLeaf = 2048;
  std::string name() const override { return "stream_lm_head"; }
  std::string doc() const override {
    return "Linear + CrossEntropy and their gradients ==> RingDtp";
  }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  int64_t strip_;  // columns of logits alive at a time
  int64_t leaf_;
};

}  // namespace weir
