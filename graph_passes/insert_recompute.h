#pragma once
#include <string>

#include "graph_passes/pass.h"

namespace weir {

// y = f(boundary)                             y = f(boundary)            forward: y dies
// ... backward: g(y, dy)             ==>      y' = f(boundary)           backward, before its first use
//                                             g(y', dy)
// for every value y of a layer (layer_regions.h) that backward reads. Kept instead of computed again: the
// layer's input, the indices of every TopK (a router is asked once; its values become
// GatherElements(scores', indices)), and with keep = "attention" what Attention makes. Clones are the same
// ops on the same bits, so that no result changes a bit. Throws InvalidArgument with the reasons when
// nothing matches.
class InsertRecompute : public Pass {
 public:
  explicit InsertRecompute(std::string keep) : keep_(std::move(keep)) {}
  std::string name() const override { return "insert_recompute"; }
  std::string doc() const override {
    return "backward's uses of a layer's activations ==> clones computed from the layer's boundary";
  }
  bool Run(Graph& graph, PassContext& context) override;

 private:
  std::string keep_;  // "none" or "attention"
};

}  // namespace weir
