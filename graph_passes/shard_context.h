#pragma once
#include "graph/layout.h"
#include "graph_passes/pass.h"

namespace weir {

// Every rank of a context group holds the same rows of the batch, member i the i-th of C equal parts of each sequence
// (`sequence` in shapes is the length of a part):
//
// y = Attention(q, k, v, sinks)   ==>  y = HeadsToSequence(Attention(SequenceToHeads(q), .. (k), .. (v), sinks'))
// RotaryTable(length)             ==>  RotaryTable<part = i>(length)
//
// Attention sees whole sequences and 1/C of the heads (sinks' are theirs; a kv head is held by several ranks when there
// are fewer than C). Where C does not divide the heads, C = U * R with U the largest divisor that does: R consecutive ranks
// hold the same 1/U of the heads, whole keys and values, and of the queries each its share of the rows (adr/0007). All
// else treats positions alike, or is refused (token_wise.h). Run before gradients are built: the backward's exchanges are
// the gradients of these. Throws UnsupportedOp with all reasons.
class ShardContext : public Pass {
 public:
  ShardContext(int64_t ranks, int64_t member) : ranks_(ranks), member_(member) {}
  std::string name() const override { return "shard_context"; }
  std::string doc() const override { return "Attention ==> the same on whole sequences and a share of the heads, between exchanges"; }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  void Shard(Graph& graph, Node& attention) const;
  int64_t ranks_, member_;
};

// What the length of a sequence must be a multiple of for `ranks` ranks to hold it together: that many, or twice as many
// where ranks that share heads halve the parts. Of a canonical graph.
int64_t SequenceUnit(const Graph& canonical, int64_t ranks);
// Tokens of a sequence that one rank holds. Throws InvalidArgument when the parts would not be equal.
int64_t SequenceOfRank(const Graph& canonical, const Layout& layout, int64_t sequence);

}  // namespace weir
