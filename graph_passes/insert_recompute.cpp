#include "graph_passes/insert_recompute.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/layer_regions.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

bool IsIndices(const Value& value) { return value.producer_index == 1 && Is(*value.producer, "TopK"); }

// The clones of one layer.
class Recompute {
 public:
  Recompute(Graph& graph, const LayerRegion& layer, bool keep_attention,
            const std::unordered_map<const Node*, int>& position)
      : graph_(graph), layer_(layer), keep_attention_(keep_attention), position_(position) {
    for (const Node* node : layer.nodes) {
      for (Value* output : node->outputs) {
        if (output != nullptr && output != layer.output) own_.insert(output);
      }
    }
  }

  // Why the layer cannot be run twice, or "".
  std::string Plan() {
    for (auto it = layer_.nodes.rbegin(); it != layer_.nodes.rend(); ++it) {
      Node& node = **it;
      int first_use = kNever;
      for (const Value* output : node.outputs) {
        if (output != nullptr && IsRecomputed(*output)) first_use = std::min(first_use, FirstUse(*output));
      }
      if (first_use == kNever) continue;
      if (node.schema->has_side_effect || !node.schema->aliases.empty()) {
        return StrCat(node.op(), " ", node.source, " changes its inputs; it cannot run twice");
      }
      anchor_[&node] = first_use;
      for (const Value* input : node.inputs) {
        if (input == nullptr || !IsRecomputed(*input)) continue;
        const auto [known, added] = wanted_.try_emplace(input, first_use);
        if (!added) known->second = std::min(known->second, first_use);
      }
    }
    return "";
  }

  bool empty() const { return anchor_.empty(); }

  // `order`: the nodes by position. Returns the nodes that were cloned.
  std::vector<Node*> Emit(const std::vector<Node*>& order) {
    std::vector<Node*> clones;
    for (Node* node : layer_.nodes) {
      if (anchor_.contains(node)) clones.push_back(node);
    }
    std::stable_sort(clones.begin(), clones.end(),
                     [&](const Node* a, const Node* b) { return anchor_.at(a) < anchor_.at(b); });
    for (Node* node : clones) Clone(*node, order[static_cast<size_t>(anchor_.at(node))]);
    for (const auto& [from, to] : clone_of_) RedirectUses(from, to);
    return clones;
  }

 private:
  static constexpr int kNever = 1 << 30;

  bool IsRecomputed(const Value& value) const {
    return own_.contains(&value) && !IsLaunchInts(value) && !IsIndices(value) &&
           !(keep_attention_ && value.producer->op() == "Attention");
  }

  // Position of the first backward node that needs the value, itself or through a clone. Shape reads no
  // bytes: it folds away when the launch is bound.
  int FirstUse(const Value& value) const {
    const auto it = wanted_.find(&value);
    int first = it == wanted_.end() ? kNever : it->second;
    for (const Use& use : value.uses) {
      if (ReadsInBackward(use)) first = std::min(first, position_.at(use.node));
    }
    return first;
  }
  static bool ReadsInBackward(const Use& use) {
    return use.node->phase == Phase::kBackward && !Is(*use.node, "Shape");
  }

  Value* Again(Value* value) const {
    const auto it = clone_of_.find(value);
    return it == clone_of_.end() ? value : it->second;
  }

  bool IsWanted(const Value* value) const {
    return value != nullptr && IsRecomputed(*value) && FirstUse(*value) != kNever;
  }

  void Clone(Node& node, Node* before) {
    std::vector<Value*> inputs, outputs;
    for (Value* input : node.inputs) inputs.push_back(Again(input));
    const auto add_output = [&](Value* output) {
      outputs.push_back(graph_.AddValue(output->name + ".recomputed"));
      clone_of_[output] = outputs.back();
    };
    const OpSchema* schema = node.schema;
    Attributes attributes = node.attributes;
    if (Is(node, "TopK")) {  // its values, picked by the indices chosen before
      schema = &GetOp("GatherElements");
      attributes = {{"axis", node.attributes.Int("axis", -1)}};
      inputs = {Again(node.in(0)), node.out(1)};
      add_output(node.out(0));
    } else {
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const bool required = static_cast<int>(i) < schema->min_outputs && node.out(i) != nullptr;
        required || IsWanted(node.out(i)) ? add_output(node.out(i)) : outputs.push_back(nullptr);
      }
      while (outputs.back() == nullptr) outputs.pop_back();
    }
    Node* clone = graph_.AddNode(*schema, std::move(inputs), std::move(outputs), std::move(attributes), before);
    clone->phase = Phase::kBackward;
    clone->source = node.source;
    InferNode(*clone);
  }

  void RedirectUses(Value* from, Value* to) {
    const std::vector<Use> uses = from->uses;
    for (const Use& use : uses) {
      if (ReadsInBackward(use)) graph_.SetInput(use.node, static_cast<size_t>(use.index), to);
    }
  }

  Graph& graph_;
  const LayerRegion& layer_;
  const bool keep_attention_;
  const std::unordered_map<const Node*, int>& position_;
  std::unordered_set<const Value*> own_;             // values of the layer, its output apart
  std::unordered_map<const Value*, int> wanted_;     // read by a clone: before which position
  std::unordered_map<const Node*, int> anchor_;      // to run again, before which position
  std::unordered_map<Value*, Value*> clone_of_;
};

// What only backward read (a norm's rstd) the forward need not write.
void DropUnusedOutputs(Graph& graph, Node& node) {
  std::vector<Value*> outputs = node.outputs, unused;
  for (size_t i = static_cast<size_t>(node.schema->min_outputs); i < outputs.size(); ++i) {
    if (outputs[i] == nullptr || !outputs[i]->uses.empty() || graph.IsOutput(outputs[i])) continue;
    unused.push_back(outputs[i]);
    outputs[i] = nullptr;
  }
  if (unused.empty()) return;
  while (outputs.back() == nullptr) outputs.pop_back();
  const OpSchema& schema = *node.schema;
  const std::vector<Value*> inputs = node.inputs;
  const Attributes attributes = node.attributes;
  const std::string source = node.source;
  const Phase phase = node.phase;
  const auto next = std::next(node.self);
  Node* before = next == graph.nodes().end() ? nullptr : next->get();
  graph.RemoveNode(&node);
  for (Value* value : unused) graph.RemoveValue(value);
  Node* again = graph.AddNode(schema, inputs, std::move(outputs), attributes, before);
  again->phase = phase;
  again->source = source;
}

}  // namespace

bool InsertRecompute::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(keep_ == "none" || keep_ == "attention", ErrorCode::kInvalidArgument, "--recompute-keep=", keep_,
             " is unknown; use none or attention");
  context.listed = true;
  const LayerSearch search = FindLayers(graph);
  std::vector<Node*> order;
  std::unordered_map<const Node*, int> position;
  for (const auto& node : graph.nodes()) {
    position[node.get()] = static_cast<int>(order.size());
    order.push_back(node.get());
  }
  std::vector<Node*> cloned;
  for (const LayerRegion& layer : search.layers) {
    Node& end = *layer.output->producer;
    Recompute recompute(graph, layer, keep_ == "attention", position);
    std::string why = recompute.Plan();
    if (why.empty() && recompute.empty()) why = "backward reads none of its activations";
    if (!why.empty()) {
      context.Missed(end, why);
      continue;
    }
    const auto again = recompute.Emit(order);
    cloned.insert(cloned.end(), again.begin(), again.end());
    context.Matched(end);
    context.where.back() += StrCat(": layer from '", layer.input->name, "' to '", layer.output->name, "', ", again.size(),
                                   " of ", layer.nodes.size(), " nodes run again");
  }
  for (Node* node : cloned) DropUnusedOutputs(graph, *node);
  if (context.matches == 0) {
    std::string reasons = search.layers.empty() ? "\n  " + search.why : "";
    for (const std::string& miss : context.misses) reasons += "\n  " + miss;
    throw Error(ErrorCode::kInvalidArgument,
                StrCat("--recompute layer: no layer can be computed again; leave the flag out or change the model:", reasons));
  }
  return true;
}

}  // namespace weir
