#pragma once
#include "graph_passes/pass.h"

namespace weir {

// loss, dx, acc' = RingDtp(x, weight [V,H], labels, scale, acc [V,H])   ==>
// loss, dx, acc' = RingDtp<group, vocab_parallel, vocabulary>(x, weight [V',H], labels, scale, acc [V,H])
// The head's weight, trained or frozen, becomes this rank's run of vocabulary leaves (VocabularyShare), V' about V/P;
// loading reads that part alone (ParameterInfo::shard). The accumulator stays whole: a rank's tokens have gradients
// of all columns, which are added over all ranks before each takes its rows (add_optimizer). With `shard_gradient` it is cut like the
// weight, and the head adds over the group at once. After stream_lm_head.
class ShardVocabulary : public Pass {
 public:
  // `member`: of the vocabulary group of `vocabulary_parallel` ranks; leaves of `leaf` columns.
  ShardVocabulary(int64_t vocabulary_parallel, int64_t member, int64_t leaf, bool shard_gradient = false)
      : ranks_(vocabulary_parallel), member_(member), leaf_(leaf), shard_gradient_(shard_gradient) {}
  std::string name() const override { return "shard_vocabulary"; }
  std::string doc() const override { return "head weight [V,H] ==> this rank's vocabulary leaves [V/P,H]"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  void Shard(Graph& graph, Node& head) const;
  int64_t ranks_, member_, leaf_;
  bool shard_gradient_;
};

}  // namespace weir
