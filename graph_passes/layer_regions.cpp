#include "graph_passes/layer_regions.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

// The forward nodes on paths from the token embedding to the head, and where each value stands.
class MainPath {
 public:
  explicit MainPath(const Graph& graph) {
    for (const auto& node : graph.nodes()) {
      if (node->phase == Phase::kForward) forward_.push_back(node.get());
    }
    const auto wanted = WantedByHead();
    std::unordered_set<const Value*> reached;
    for (size_t i = 0; i < forward_.size(); ++i) {
      Node* node = forward_[i];
      const bool source = node->op() == "Embedding";
      const bool main = IsMade(*node, wanted) && (source || Reads(*node, reached));
      if (!main) continue;
      if (source) last_source_ = static_cast<int>(i);
      for (const Value* output : node->outputs) reached.insert(output);
      nodes_.emplace_back(node, static_cast<int>(i));
    }
  }

  bool has_source() const { return last_source_ >= 0; }
  const std::vector<Node*>& forward() const { return forward_; }
  const std::vector<std::pair<Node*, int>>& nodes() const { return nodes_; }

  // Values that no edge jumps over, with the index in nodes() of their producer.
  std::vector<std::pair<Value*, size_t>> Cuts() const {
    std::unordered_map<const Node*, int> position;
    for (const auto& [node, at] : nodes_) position[node] = at;
    const auto last_use = [&](const Value* value) {
      int last = -1;
      for (const Use& use : value->uses) {
        const auto it = position.find(use.node);
        if (it != position.end()) last = std::max(last, it->second);
      }
      return last;
    };
    std::vector<std::pair<Value*, size_t>> cuts;
    int reach = last_source_;  // how far edges from what came before go
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const auto& [node, at] = nodes_[i];
      int own = -1;
      for (const Value* output : node->outputs) {
        if (output != nullptr && output != node->out()) own = std::max(own, last_use(output));
      }
      if (reach <= at && own <= at && node->out() != nullptr) cuts.emplace_back(node->out(), i);
      reach = std::max({reach, own, node->out() == nullptr ? -1 : last_use(node->out())});
    }
    return cuts;
  }

  // Whether two branches of the path meet in `node`: the residual sum.
  bool IsResidualSum(const Node& node) const {
    return Is(node, "Add") && node.in(0) != node.in(1) && OnPath(node.in(0)) && OnPath(node.in(1));
  }

 private:
  static bool IsMade(const Node& node, const std::unordered_set<const Value*>& values) {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](const Value* value) { return value != nullptr && values.contains(value); });
  }
  static bool Reads(const Node& node, const std::unordered_set<const Value*>& values) {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](const Value* value) {
      return value != nullptr && !IsLaunchInts(*value) && values.contains(value);
    });
  }

  // What the logits are computed from; terms added to the loss beside them do not count.
  std::unordered_set<const Value*> WantedByHead() const {
    std::unordered_set<const Value*> wanted;
    for (auto it = forward_.rbegin(); it != forward_.rend(); ++it) {
      const Node& node = **it;
      if (Is(node, "CrossEntropy", "ai.weir") || Is(node, "RingDtp", "ai.weir")) {
        wanted.insert(node.in(0));
      } else if (IsMade(node, wanted)) {
        wanted.insert(node.inputs.begin(), node.inputs.end());
      }
    }
    wanted.erase(nullptr);
    return wanted;
  }

  bool OnPath(const Value* value) const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [&](const auto& entry) { return entry.first == value->producer; });
  }

  std::vector<Node*> forward_;
  std::vector<std::pair<Node*, int>> nodes_;  // with positions in forward_
  int last_source_ = -1;
};

// Side branches (a router's loss) belong to the one layer that feeds them.
void AddSideBranches(const MainPath& path, std::vector<LayerRegion>& layers) {
  constexpr int kSeveral = -1;
  std::unordered_map<const Value*, int> layer_of;
  std::unordered_map<const Node*, int> assigned;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (const Node* node : layers[l].nodes) assigned[node] = static_cast<int>(l);
  }
  std::vector<std::vector<Node*>> members(layers.size());
  for (Node* node : path.forward()) {
    const auto known = assigned.find(node);
    std::optional<int> layer;
    if (known != assigned.end()) layer = known->second;
    for (size_t i = 0; i < node->inputs.size() && known == assigned.end(); ++i) {
      const auto it = layer_of.find(node->in(i));
      if (it == layer_of.end()) continue;
      layer = layer && *layer != it->second ? kSeveral : it->second;
      if (*layer == kSeveral) break;
    }
    if (!layer) continue;
    for (const Value* output : node->outputs) {
      const bool boundary = *layer != kSeveral && output == layers[static_cast<size_t>(*layer)].output;
      if (output != nullptr && !boundary && !IsLaunchInts(*output)) layer_of[output] = *layer;
    }
    if (*layer != kSeveral) members[static_cast<size_t>(*layer)].push_back(node);
  }
  for (size_t l = 0; l < layers.size(); ++l) layers[l].nodes = std::move(members[l]);
}

// What lies between one residual sum and the next; the first begins at the value before it.
std::vector<LayerRegion> ResidualSegments(const MainPath& path) {
  std::vector<LayerRegion> segments;
  const auto cuts = path.Cuts();
  auto begin = cuts.begin();
  for (auto cut = cuts.begin(); cut != cuts.end(); ++cut) {
    if (cut == cuts.begin() || !path.IsResidualSum(*path.nodes()[cut->second].first)) continue;
    if (segments.empty()) begin = std::prev(cut);
    LayerRegion& segment = segments.emplace_back(LayerRegion{.input = begin->first, .output = cut->first, .nodes = {}});
    for (size_t i = begin->second + 1; i <= cut->second; ++i) segment.nodes.push_back(path.nodes()[i].first);
    begin = cut;
  }
  return segments;
}

bool HasAttention(const LayerRegion& region) {
  return std::any_of(region.nodes.begin(), region.nodes.end(),
                     [](const Node* node) { return Is(*node, "Attention", "ai.weir"); });
}

}  // namespace

bool IsLaunchInts(const Value& value) {
  return !IsFloat(value.dtype) && value.content.has_value() &&
         std::all_of(value.content->begin(), value.content->end(), [](const Dim& dim) { return dim.IsKnown(); });
}

LayerSearch FindLayers(const Graph& graph) {
  const MainPath path(graph);
  LayerSearch search;
  if (!path.has_source()) {
    search.why = "no path leads from a token embedding to the loss";
    return search;
  }
  const auto segments = ResidualSegments(path);
  if (segments.empty()) search.why = "no residual sum lies on every path from the token embedding to the head";
  const bool any_attention = std::any_of(segments.begin(), segments.end(), HasAttention);
  bool open = false;  // the last layer has no Attention yet
  for (const LayerRegion& segment : segments) {
    const bool attention = HasAttention(segment);
    if (search.layers.empty() || !any_attention || (attention && !open)) {
      search.layers.push_back(segment);
      open = !attention;
      continue;
    }
    LayerRegion& layer = search.layers.back();
    layer.output = segment.output;
    layer.nodes.insert(layer.nodes.end(), segment.nodes.begin(), segment.nodes.end());
    open &= !attention;
  }
  AddSideBranches(path, search.layers);
  return search;
}

}  // namespace weir
