#include "graph_passes/stream_optimizer.h"

#include <algorithm>
#include <set>

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"
#include "graph_passes/replace_node.h"

namespace weir {
namespace {

constexpr size_t kRing = 8;  // input; its new version is output 4
constexpr size_t kState[] = {2, 3, 7};  // m, v and, of split masters, the low halves

int64_t ElementsOf(const Node& adamw) { return NumElements(ToDims(adamw.in(1)->shape)); }

int64_t StateBytes(const Node& node) {
  int64_t bytes = 0;
  for (const size_t i : kState) {
    if (const Value* state = node.in(i)) bytes += BytesOf(state->dtype, NumElements(ToDims(state->shape)));
  }
  return bytes;
}

Node* FirstAfterBackward(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->phase >= Phase::kNorm) return node.get();
  }
  return nullptr;
}

// Turns AdamW nodes into a stream through one ring of buckets, which starts before the gradient norm.
class Stream {
 public:
  Stream(Graph& graph, std::vector<Node*> nodes, const StreamOptimizerOptions& options) : graph_(graph), nodes_(std::move(nodes)) {
    int64_t largest = 1, total = 0;
    bool split = false;
    for (const Node* node : nodes_) {
      largest = std::max(largest, ElementsOf(*node));
      split |= node->in(7) != nullptr;
    }
    bucket_ = std::min(options.bucket, largest);
    for (const Node* node : nodes_) total += BucketsOf(*node);
    slots_ = std::min(options.slots, std::max<int64_t>(total, 1));
    slot_bytes_ = DivCeil(bucket_ * (split ? 10 : 8), 16) * 16;
  }

  void Run(PassContext& context) {
    Start();
    for (size_t k = 0; k < nodes_.size(); ++k) context.Matched(Replace(*nodes_[k], k + 1 < nodes_.size() ? nodes_[k + 1] : nullptr));
  }

 private:
  int64_t BucketsOf(const Node& adamw) const { return DivCeil(ElementsOf(adamw), bucket_); }

  static void AddState(const Node& adamw, std::vector<Value*>& inputs) {
    for (const size_t i : kState) {
      if (adamw.in(i) != nullptr) inputs.push_back(adamw.in(i));
    }
  }

  void Start() {
    Builder builder(graph_, FirstAfterBackward(graph_));
    builder.SetPhase(Phase::kNorm);
    builder.SetStem("optimizer.ring");
    builder.SetSource(nodes_[0]->source);
    std::vector<Value*> state;
    AddState(*nodes_[0], state);
    ring_ = builder.Op("PrefetchState", state, {{"bucket", bucket_}, {"slots", slots_}, {"slot_bytes", slot_bytes_}});
    fetched_ = std::min(slots_, BucketsOf(*nodes_[0]));
  }

  Node& Replace(Node& adamw, const Node* next) {
    Attributes attributes = adamw.attributes;
    attributes.Set("bucket", bucket_);
    attributes.Set("slots", slots_);
    attributes.Set("first", first_);
    attributes.Set("fetched", fetched_);
    std::vector<Value*> inputs = adamw.inputs, outputs = adamw.outputs;
    inputs.resize(kRing);
    inputs.push_back(ring_);
    outputs.resize(4);
    outputs.push_back(graph_.AddValue("optimizer.ring"));
    first_ += BucketsOf(adamw);
    if (next != nullptr) {  // each starts the one after it
      AddState(*next, inputs);
      fetched_ = std::min(first_ + slots_, first_ + BucketsOf(*next));
    }
    ring_ = outputs.back();
    return ReplaceNode(graph_, adamw, GetOp("OffloadStreamAdamW", "ai.weir"), std::move(inputs), std::move(outputs), std::move(attributes));
  }

  Graph& graph_;
  const std::vector<Node*> nodes_;
  int64_t bucket_ = 1, slots_ = 1, slot_bytes_ = 0;
  int64_t first_ = 0, fetched_ = 0;  // buckets of all parameters: before the node at hand, and started before it
  Value* ring_ = nullptr;
};

}  // namespace

bool StreamOptimizer::Run(Graph& graph, PassContext& context) {
  WEIR_CHECK(options_.bucket > 0 && options_.slots > 0 && options_.resident >= 0, ErrorCode::kInvalidArgument, "--bucket=",
             options_.bucket, ", --slots=", options_.slots, ", --resident=", options_.resident,
             ": bucket and slots must be positive, resident not negative");
  context.listed = true;
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (Is(*node, "AdamW", "ai.weir")) nodes.push_back(node.get());
  }
  WEIR_CHECK(!nodes.empty(), ErrorCode::kInvalidArgument, "--bucket: the graph has no AdamW to stream");
  std::vector<Node*> smallest = nodes;
  std::stable_sort(smallest.begin(), smallest.end(), [](const Node* a, const Node* b) { return StateBytes(*a) < StateBytes(*b); });
  int64_t resident = 0;
  for (Node* node : smallest) {
    const int64_t bytes = StateBytes(*node);
    if (resident + bytes > options_.resident) continue;
    resident += bytes;
    context.Missed(*node, StrCat("state stays on the device, ", bytes, " bytes within --resident"));
    std::erase(nodes, node);
  }
  if (nodes.empty()) return false;
  Stream(graph, std::move(nodes), options_).Run(context);
  return true;
}

}  // namespace weir
