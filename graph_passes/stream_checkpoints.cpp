#include "graph_passes/stream_checkpoints.h"

#include <algorithm>
#include <unordered_map>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/layer_regions.h"

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

// Where the four nodes of one boundary go: each before a node.
struct Places {
  Node *stash, *stash_wait, *fetch, *fetch_wait;
};

Node* After(Graph& graph, Node& node) {
  const auto next = std::next(node.self);
  return next == graph.nodes().end() ? nullptr : next->get();
}

Places PlacesOf(Graph& graph, const Order& order, const LayerRegion& layer) {
  Node* last_read = order.LastUse(*layer.input, Phase::kForward);
  Node* end = layer.output->producer;
  const bool read_later = last_read != nullptr && !order.Before(last_read, end);
  Node* next_layer = order.FirstUse(*layer.output, Phase::kBackward);
  return {.stash = After(graph, *layer.input->producer),
          .stash_wait = read_later ? After(graph, *last_read) : end,
          .fetch = next_layer != nullptr ? next_layer : order.first_backward(),
          .fetch_wait = order.FirstUse(*layer.input, Phase::kBackward)};
}

void Stream(Graph& graph, const Places& places, Value* boundary, int64_t index) {
  std::vector<Use> reads;
  for (const Use& use : boundary->uses) {
    if (use.node->phase == Phase::kBackward) reads.push_back(use);
  }
  const auto add = [&](const char* op, Phase phase, int64_t event, std::vector<Value*> inputs, const char* suffix, Node* before) {
    Node* node = graph.AddNode(GetOp(op, "ai.weir"), std::move(inputs), {graph.AddValue(boundary->name + suffix)},
                               {{"event", event}}, before);
    node->phase = phase;
    node->source = boundary->producer->source;
    InferNode(*node);
    return node->out();
  };
  const int64_t stash = 2 * index, fetch = stash + 1;
  Value* host = add("StashStart", Phase::kForward, stash, {boundary}, ".host", places.stash);
  Value* whole = add("StashWait", Phase::kForward, stash, {boundary, host}, ".stashed", places.stash_wait);
  Value* begun = add("FetchStart", Phase::kBackward, fetch, {whole}, ".fetching", places.fetch);
  Value* back = add("FetchWait", Phase::kBackward, fetch, {begun, whole}, ".fetched", places.fetch_wait);
  for (const Use& use : reads) graph.SetInput(use.node, static_cast<size_t>(use.index), back);
}

}  // namespace

bool StreamCheckpoints::Run(Graph& graph, PassContext& context) {
  context.listed = true;
  const LayerSearch search = FindLayers(graph);
  WEIR_CHECK(!search.layers.empty(), ErrorCode::kInvalidArgument, "--host-budget: no layer boundaries to offload: ", search.why,
             "; leave the flag out or change the model");
  int64_t used = 0, index = 0;
  for (const LayerRegion& layer : search.layers) {
    const Order order(graph);
    Value& boundary = *layer.input;
    const Node& maker = *boundary.producer;
    const int64_t bytes = HostBytes(boundary);
    if (order.FirstUse(boundary, Phase::kBackward) == nullptr || graph.IsOutput(&boundary)) {
      context.Missed(maker, "backward does not read this boundary");
    } else if (used + bytes > host_budget_) {
      context.Missed(maker, StrCat("stays on the device: ", bytes, " bytes beside ", used, " exceed the host budget of ", host_budget_));
    } else {
      Stream(graph, PlacesOf(graph, order, layer), &boundary, index++);
      used += bytes;
      context.Matched(maker);
      context.where.back() += StrCat(": '", boundary.name, "', ", bytes, " bytes");
    }
  }
  std::string reasons;
  for (const std::string& miss : context.misses) reasons += "\n  " + miss;
  WEIR_CHECK(index > 0, ErrorCode::kInvalidArgument, "--host-budget=", host_budget_, " holds no layer boundary; raise it or leave the flag out:", reasons);
  return true;
}

}  // namespace weir
