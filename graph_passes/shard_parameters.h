#pragma once
#include "graph/layout.h"
#include "graph_passes/pass.h"

namespace weir {

// What shard_optimizer holds a share of the rows of is whole for a layer at a time, in other words FSDP's full shard, ZeRO's stage 3:
//
// whole = AllGatherRows(P), once a step     whole = AllGatherRows<event>(P), where the section before begins
// y = Linear(x, whole)              ==>     whole' = JoinBeside(whole); y = Linear(x, whole')          again in backward
//
// so that the weights of at most two sections (step_sections.h) are whole: those at work and the next. With `gradients`, for steps of
// one micro-batch, an accumulator lives from its first link to the end of the section after:
//
// acc = ZeroFill(P.grad); acc' = LinearWeightGradient(x, dy, acc)     acc = Zeros; acc' = LinearWeightGradient(x, dy, acc)
// sum = TreeReduceGradient(acc')                               ==>    rows = ReduceRows<event>(acc', P.grad), beside what follows
// GradientNorm(sum, ...); AdamW(P, Slice(sum), ...)                   rows' = JoinBeside(rows, acc'), where two sections have passed
//                                                                     GradientNorm(BlockSquares<whole>(rows'), ...); AdamW(P, rows', ...)
//
// and P.grad is this rank's rows. Same adds, same bits. After shard_optimizer. What has no layers is refused.
class ShardParameters : public Pass {
 public:
  ShardParameters(const Layout& layout, bool gradients) : ranks_(layout.world), gradients_(gradients) {}
  std::string name() const override { return "shard_parameters"; }
  std::string doc() const override { return "rows gathered once a step, sums on all ranks ==> gathered a layer ahead, sums of own rows"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  int64_t ranks_;
  bool gradients_;
};

}  // namespace weir
