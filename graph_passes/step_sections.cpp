#include "graph_passes/step_sections.h"

#include <algorithm>
#include <limits>

namespace weir {

StepSections::StepSections(const Graph& graph, const std::vector<LayerRegion>& layers, const std::vector<const Value*>& weights) {
  for (const auto& node : graph.nodes()) {
    if (node->phase != Phase::kForward && node->phase != Phase::kBackward) continue;
    position_[node.get()] = static_cast<int>(nodes_.size());
    nodes_.push_back(node.get());
    if (first_backward_ == nullptr && node->phase == Phase::kBackward) first_backward_ = node.get();
  }
  std::vector<int> begins;  // of the layers, then where the last one ends
  for (const LayerRegion& layer : layers) begins.push_back(position_.at(layer.nodes.front()));
  begins.push_back(position_.at(layers.back().output->producer) + 1);
  std::vector<int> backward(layers.size(), std::numeric_limits<int>::max());
  int end = 0;
  for (const Value* weight : weights) {
    int first = std::numeric_limits<int>::max(), first_backward = first, last = 0;
    for (const Use& use : weight->uses) {
      const int at = position_.at(use.node);
      first = std::min(first, at);
      last = std::max(last, at);
      if (use.node->phase == Phase::kBackward) first_backward = std::min(first_backward, at);
    }
    const auto layer = static_cast<size_t>(std::ranges::upper_bound(begins, first) - begins.begin()) - 1;
    if (layer >= layers.size() || first_backward > last) continue;
    backward[layer] = std::min(backward[layer], first_backward);
    end = std::max(end, last + 1);
  }
  cuts_ = {0};
  cuts_.insert(cuts_.end(), begins.begin(), begins.end());
  std::ranges::copy_if(backward, std::back_inserter(cuts_), [](int at) { return at != std::numeric_limits<int>::max(); });
  if (end > 0) cuts_.push_back(end);
  std::ranges::sort(cuts_);
  cuts_.erase(std::ranges::unique(cuts_).begin(), cuts_.end());
}

int StepSections::Of(const Node* node) const { return static_cast<int>(std::ranges::upper_bound(cuts_, position_.at(node)) - cuts_.begin()) - 1; }

Node* StepSections::Begin(int section) const {
  const auto s = static_cast<size_t>(section);
  return s < cuts_.size() && cuts_[s] < std::ssize(nodes_) ? nodes_[static_cast<size_t>(cuts_[s])] : nullptr;
}

Node* StepSections::Ahead(int section) const {
  Node* before = Begin(std::max(section - 1, 0));
  const bool early = Begin(section)->phase == Phase::kBackward && before->phase != Phase::kBackward;
  return early ? first_backward_ : before;
}

}  // namespace weir
