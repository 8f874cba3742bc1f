#pragma once
#include <unordered_map>
#include <vector>

#include "graph_passes/layer_regions.h"

namespace weir {

// Forward and backward in order, cut where the weights of one layer give way to those of the next: what lies before the layers, each
// layer, the head with its backward, each layer's backward from the first use of a weight of it on, what follows. Nodes that are
// added later are in none.
class StepSections {
 public:
  // `weights`: values that layers read, the cuts of backward.
  StepSections(const Graph& graph, const std::vector<LayerRegion>& layers, const std::vector<const Value*>& weights);

  int Of(const Node* node) const;
  // The first node of a section; nullptr behind the last.
  Node* Begin(int section) const;
  // Where what section `section` needs begins to come: at the section before, no earlier than backward begins for one of backward.
  Node* Ahead(int section) const;
  Node* first_backward() const { return first_backward_; }
  int PositionOf(const Node* node) const { return position_.at(node); }

 private:
  std::unordered_map<const Node*, int> position_;
  std::vector<Node*> nodes_;
  std::vector<int> cuts_;  // where sections begin, ascending
  Node* first_backward_ = nullptr;
};

}  // namespace weir
