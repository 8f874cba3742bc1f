#include "graph_passes/stream_dispatch.h"

#include <cmath>
#include <map>

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

constexpr size_t kGradientInputs = 12;  // of ExpertsGradient, absent ones included

// What a layer's routes are known by on both ways: the ids and the first weight.
using LayerKey = std::pair<const Value*, const Value*>;
LayerKey KeyOf(const Node& node) { return {node.in(1), node.in(3)}; }

std::vector<Node*> FindNodes(const Graph& graph, std::string_view op) {
  std::vector<Node*> found;
  for (const auto& node : graph.nodes()) {
    if (node->op() == op) found.push_back(node.get());
  }
  return found;
}

// The plan is cut into the units that the gradient sums.
void SetUnits(Attributes& attributes, const Attributes& gradient) {
  for (const char* name : {"leaves", "unit_rows"}) {
    if (const Attribute* value = gradient.Find(name)) attributes.Set(name, *value);
  }
}

// A node of `op` in the place of `old`, with `more` outputs behind the old ones; values keep their names.
Node* Replace(Graph& graph, Node* old, const char* op, std::vector<Value*> inputs, Attributes attributes,
              const std::vector<std::string>& more) {
  const std::vector<Value*> olds = old->outputs;
  std::vector<Value*> outputs;
  for (const Value* value : olds) outputs.push_back(value ? graph.AddValue(value->name) : nullptr);
  for (const std::string& name : more) outputs.push_back(graph.AddValue(name));
  Node* node = graph.AddNode(GetOp(op), std::move(inputs), outputs, std::move(attributes), old);
  node->phase = old->phase;
  node->source = old->source;
  InferNode(*node);
  for (size_t i = 0; i < olds.size(); ++i) {
    if (olds[i] != nullptr) graph.ReplaceUses(olds[i], outputs[i]);
  }
  graph.RemoveNode(old);
  for (size_t i = 0; i < olds.size(); ++i) {
    if (olds[i] == nullptr) continue;
    const std::string name = olds[i]->name;
    graph.RemoveValue(olds[i]);
    graph.Rename(outputs[i], name);
  }
  return node;
}

}  // namespace

Attributes StreamDispatch::Knobs(const Node& experts) const {
  Attributes knobs = experts.attributes;
  const Dim& count = experts.in(3)->shape[0];
  WEIR_CHECK(count.Constant() >= expert_parallel_, ErrorCode::kInvalidArgument, "--expert-parallel=", expert_parallel_, " spreads the experts over ",
             expert_parallel_, " ranks, but ", experts.source, " has ", count.Constant(), "; give ", count.Constant(), " or less, a divisor of the ranks");
  knobs.Set("experts", count.Constant());
  if (options_ && options_->chunk_tokens > 0) knobs.Set("chunk_tokens", options_->chunk_tokens);
  if (options_ && options_->max_chunks > 0) knobs.Set("max_chunks", options_->max_chunks);
  if (expert_parallel_ == 1) return knobs;
  knobs.Set("expert_parallel", expert_parallel_);
  knobs.Set("group", std::string("expert"));
  if (!options_ || std::isinf(options_->lambda)) return knobs;
  knobs.Set("llep_lambda", options_->lambda);
  knobs.Set("llep_alpha", options_->alpha);
  knobs.Set("min_rows", options_->min_rows);
  knobs.Set("max_foreign", options_->max_foreign);
  return knobs;
}

bool StreamDispatch::Run(Graph& graph, PassContext& context) {
  const std::vector<Node*> layers = FindNodes(graph, "Experts");
  WEIR_CHECK(!layers.empty(), ErrorCode::kUnsupportedOp, "expert dispatch was asked for (--expert-parallel=",
             expert_parallel_, " or --chunk-tokens), but the graph has no Experts: no mixture of experts was recognised; "
             "see the misses of fuse_experts in passes.log");
  const std::vector<Node*> gradients = FindNodes(graph, "ExpertsGradient");
  std::map<LayerKey, const Node*> gradient_of;
  for (const Node* node : gradients) gradient_of[KeyOf(*node)] = node;
  std::map<LayerKey, Value*> counts;
  for (Node* node : layers) {
    const LayerKey key = KeyOf(*node);
    const std::string name = node->out()->name + ".counts";
    const bool forward = node->phase == Phase::kForward;
    context.Matched(*node);
    Attributes knobs = Knobs(*node);
    if (const auto found = gradient_of.find(key); found != gradient_of.end()) {
      SetUnits(knobs, found->second->attributes);
    }
    Node* streamed = Replace(graph, node, "PipelinedLlep", node->inputs, std::move(knobs), {name});
    if (forward) counts[key] = streamed->out(1);
  }
  for (Node* node : gradients) {
    const auto known = counts.find(KeyOf(*node));
    WEIR_CHECK(known != counts.end(), ErrorCode::kInternal, "the gradient of ", node->source,
               " uses other expert ids than its forward node; routes are chosen once and kept");
    std::vector<Value*> inputs = node->inputs;
    inputs.resize(kGradientInputs, nullptr);
    inputs.push_back(known->second);
    Replace(graph, node, "PipelinedLlepGradient", std::move(inputs), Knobs(*node), {});
  }
  return true;
}

}  // namespace weir
