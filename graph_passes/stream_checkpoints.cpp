#include "graph_passes/stream_checkpoints.h"

#include <algorithm>
#include <unordered_map>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/layer_regions.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr int64_t kPlanUnit = 256;  // arenas are planned in multiples of this

int64_t HostBytes(const Value& value) {
  return DivCeil(BytesOf(value.dtype, NumElements(ToDims(value.shape))), kPlanUnit) * kPlanUnit;
}

// Execution order of a graph that only grows between the nodes it knows.
class Order {
 public:
  explicit Order(const Graph& graph) {
    for (const auto& node : graph.nodes()) {
      position_[node.get()] = static_cast<int>(nodes_.size());
      nodes_.push_back(node.get());
      if (node->phase == Phase::kBackward && first_backward_ == nullptr) first_backward_ = node.get();
    }
  }
  Node* first_backward() const { return first_backward_; }

  Node* FirstUse(const Value& value, Phase phase) const {
    Node* first = nullptr;
    for (const Use& use : value.uses) {
      if (use.node->phase == phase && (first == nullptr || Before(use.node, first))) first = use.node;
    }
    return first;
  }
  Node* LastUse(const Value& value, Phase phase) const {
    Node* last = nullptr;
    for (const Use& use : value.uses) {
      if (use.node->phase == phase && (last == nullptr || Before(last, use.node))) last = use.node;
    }
    return last;
  }
  bool Before(const Node* a, const Node* b) const { return position_.at(a) < position_.at(b); }

 private:
  std::unordered_map<const Node*, int> position_;
  std::vector<Node*> nodes_;
  Node* first_backward_ = nullptr;
};

// Where the nodes of one value go: each before a node. It leaves as soon as it is made.
struct Places {
  Node *stash_wait, *fetch, *fetch_wait;
};

Node* After(Graph& graph, const Node& node) {
  const auto next = std::next(node.self);
  return next == graph.nodes().end() ? nullptr : next->get();
}

// A value of `layer`, its input included: away by the layer's end, on its way back while the next layer is at work.
Places PlacesOf(Graph& graph, const Order& order, const LayerRegion& layer, const Value& value) {
  Node* last_read = order.LastUse(value, Phase::kForward);
  Node* end = layer.output->producer;
  const bool read_later = last_read != nullptr && !order.Before(last_read, end);
  Node* next_layer = order.FirstUse(*layer.output, Phase::kBackward);
  Node* first_read = order.FirstUse(value, Phase::kBackward);
  Node* fetch = next_layer != nullptr ? next_layer : order.first_backward();
  return {.stash_wait = read_later ? After(graph, *last_read) : end,
          .fetch = order.Before(first_read, fetch) ? first_read : fetch,
          .fetch_wait = first_read};
}

// What backward reads of a layer and host memory may hold: its input, or what an Attention made.
struct Held {
  const Node* maker = nullptr;
  std::vector<Value*> values;
  std::vector<Places> places;
  std::string stays;  // why on the device, or ""
  int64_t bytes = 0;
};

// A view shares the bytes: while backward reads one they cannot leave.
bool BackwardReadsAView(const Value& value) {
  return std::ranges::any_of(value.uses, [&](const Use& use) {
    const Node& node = *use.node;
    if (node.phase != Phase::kForward || !node.schema->view || use.index != 0) return false;
    const Value& view = *node.out();
    return BackwardReadsAView(view) || std::ranges::any_of(view.uses, [](const Use& u) { return u.node->phase == Phase::kBackward; });
  });
}

Held HeldOf(Graph& graph, const Order& order, const LayerRegion& layer, const Node& maker, const std::vector<Value*>& values) {
  Held held{.maker = &maker, .values = {}, .places = {}, .stays = {}};
  for (Value* value : values) {
    if (value == nullptr || order.FirstUse(*value, Phase::kBackward) == nullptr) continue;
    if (graph.IsOutput(value)) held.stays = "it is an output";
    if (BackwardReadsAView(*value)) held.stays = "backward reads a view of it";
    held.values.push_back(value);
    held.places.push_back(PlacesOf(graph, order, layer, *value));
    held.bytes += HostBytes(*value);
  }
  return held;
}

void Stream(Graph& graph, const Places& places, Value* value, int64_t index) {
  std::vector<Use> reads;
  for (const Use& use : value->uses) {
    if (use.node->phase == Phase::kBackward) reads.push_back(use);
  }
  const auto add = [&](const char* op, Phase phase, int64_t event, std::vector<Value*> inputs, const char* suffix, Node* before) {
    Node* node = graph.AddNode(GetOp(op, "ai.weir"), std::move(inputs), {graph.AddValue(value->name + suffix)},
                               {{"event", event}}, before);
    node->phase = phase;
    node->source = value->producer->source;
    InferNode(*node);
    return node->out();
  };
  const int64_t stash = 2 * index, fetch = stash + 1;
  Value* host = add("StashStart", Phase::kForward, stash, {value}, ".host", After(graph, *value->producer));
  Value* whole = add("StashWait", Phase::kForward, stash, {value, host}, ".stashed", places.stash_wait);
  Value* begun = add("FetchStart", Phase::kBackward, fetch, {whole}, ".fetching", places.fetch);
  Value* back = add("FetchWait", Phase::kBackward, fetch, {begun, whole}, ".fetched", places.fetch_wait);
  for (const Use& use : reads) graph.SetInput(use.node, static_cast<size_t>(use.index), back);
}

}  // namespace

bool StreamCheckpoints::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(stash_ == "boundaries" || stash_ == "attention", ErrorCode::kInvalidArgument, "--stash=", stash_, " is unknown; use boundaries or attention");
  context.listed = true;
  const LayerSearch search = FindLayers(graph);
  WEIR_CHECK(!search.layers.empty(), ErrorCode::kInvalidArgument, "--host-budget: no layer boundaries to offload: ", search.why,
             "; leave the flag out or change the model");
  const Order order(graph);
  std::vector<Held> all;  // what is held longest first
  for (const LayerRegion& layer : search.layers) {
    all.push_back(HeldOf(graph, order, layer, *layer.input->producer, {layer.input}));
    if (all.back().values.empty()) all.back().stays = "backward does not read this boundary";
  }
  for (const LayerRegion& layer : search.layers) {
    for (const Node* node : layer.nodes) {
      if (stash_ != "attention" || !Is(*node, "Attention", "ai.weir")) continue;
      if (Held held = HeldOf(graph, order, layer, *node, node->outputs); !held.values.empty()) all.push_back(std::move(held));
    }
  }
  int64_t used = 0, index = 0;
  for (const Held& held : all) {
    if (held.stays.empty() && used + held.bytes <= host_budget_) {
      context.Matched(*held.maker);
      context.where.back() += ":";
      for (size_t i = 0; i < held.values.size(); ++i) {
        context.where.back() += StrCat(" '", held.values[i]->name, "',");
        Stream(graph, held.places[i], held.values[i], index++);
      }
      context.where.back() += StrCat(" ", held.bytes, " bytes");
      used += held.bytes;
    } else {
      context.Missed(*held.maker, !held.stays.empty() ? held.stays : StrCat("stays on the device: ", held.bytes, " bytes beside ", used, " exceed the host budget of ", host_budget_));
    }
  }
  std::string reasons;
  for (const std::string& miss : context.misses) reasons += "\n  " + miss;
  WEIR_CHECK(index > 0, ErrorCode::kInvalidArgument, "--host-budget=", host_budget_, " holds no layer boundary; raise it or leave the flag out:", reasons);
  return true;
}

}  // namespace weir
