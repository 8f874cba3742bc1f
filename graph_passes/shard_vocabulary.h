#pragma once
#include <string>

#include "graph_passes/pass.h"

namespace weir {

struct ShardVocabularyOptions {
  int64_t ranks = 1, member = 0;  // of the vocabulary group
  int64_t leaf = 2048;
  int64_t share = 0;  // ranks hold runs of so many columns, a multiple of `leaf`; 0: of leaves
  bool shard_gradient = false;
  std::string move = "weights";  // what travels: weights, activations, or auto, the one that is less bytes
};

// Columns of dX that bfloat16 adds as one: where tokens travel no group of them may have two holders.
inline constexpr int64_t kBFloat16Columns = 8192;

// loss, dx, acc' = RingDtp(x, weight [V,H], labels, scale, acc [V,H])   ==>
// loss, dx, acc' = RingDtp<group, vocab_parallel, vocabulary>(x, weight [V',H], labels, scale, acc [V,H])
// The head's weight, trained or frozen, becomes this rank's run of vocabulary leaves (VocabularyShare), V' about V/P;
// loading reads that part alone (ParameterInfo::shard). The accumulator stays whole: a rank's tokens have gradients
// of all columns, which are added over all ranks before each takes its rows (add_optimizer). With `shard_gradient` it is cut like the
// weight, and the head adds over the group at once. Tokens may travel instead of the weight (`move`) where no whole gradient
// would have to travel too. A tied embedding gathers the table, AllGatherRows(weight), while it reads. After stream_lm_head.
class ShardVocabulary : public Pass {
 public:
  explicit ShardVocabulary(ShardVocabularyOptions options) : o_(std::move(options)) {}
  std::string name() const override { return "shard_vocabulary"; }
  std::string doc() const override { return "head weight [V,H] ==> this rank's vocabulary leaves [V/P,H]"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  void Shard(Graph& graph, Node& head) const;
  void GatherFor(Graph& graph, Node& embedding, Value& weight, int64_t rows, int64_t unit) const;
  bool TokensMayTravel(const Node& head) const;
  ShardVocabularyOptions o_;
};

}  // namespace weir
