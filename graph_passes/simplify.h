#pragma once
#include <string>

#include "graph/builder.h"
#include "graph_passes/pass.h"

namespace weir {

// Local rewrites that remove what does nothing and give equal things one spelling. Each rule looks
// at one node and its producers; fold_constants must have inferred the shapes.
class Simplify : public Pass {
 public:
  std::string name() const override { return "simplify"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

// What a rule does with its node: replace output 0, or change the node in place.
class Rewrite {
 public:
  Rewrite(Graph& graph, Node& node);
  Graph& graph;
  Node& node;
  Builder builder;  // works before the node

  Value* in(size_t i) const { return node.in(i); }
  Value* out() const { return node.out(0); }
  bool Replace(Value* value);  // output 0 becomes `value`; returns true
  bool SetInts(size_t input, const std::vector<int64_t>& ints);  // false when it already says so
  bool ShapesKnown() const;                                      // of input 0 and output 0
};
using SimplifyRule = bool (*)(Rewrite&);
// The rule of an op of ai.onnx, nullptr when it has none.
SimplifyRule FindArithmeticRule(const std::string& op);
SimplifyRule FindReshapeRule(const std::string& op);  // reshapes, transposes, repeats
SimplifyRule FindPartRule(const std::string& op);     // slices, splits, concatenations

// Explicit non-negative axes, no attributes that state a default, axes as inputs.
bool NormalizeAttributes(Graph& graph, Node& node);

}  // namespace weir
