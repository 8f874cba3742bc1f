#pragma once
#include "graph_passes/pass.h"

namespace weir {

// gate_up [E,2I,H], gate_up.grad [E,2I,H]   ==>   [E',2I,H] of this rank, E' = E/E_p
// Every weight of a PipelinedLlep, trained or frozen, becomes this rank's run of experts (the first
// E mod E_p ranks hold one more), its accumulator too; loading reads that part alone
// (ParameterInfo::shard). Gradients are summed over the ranks that hold the same run, group "replica".
class ShardExperts : public Pass {
 public:
  // `member`: of the expert group of `expert_parallel` ranks.
  ShardExperts(int64_t expert_parallel, int64_t member) : ranks_(expert_parallel), member_(member) {}
  std::string name() const override { return "shard_experts"; }
  std::string doc() const override { return "expert parameters [E,...] ==> this rank's experts [E/E_p,...]"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  void Shard(Graph& graph, Value& weight) const;
  int64_t ranks_, member_;
};

}  // namespace weir
