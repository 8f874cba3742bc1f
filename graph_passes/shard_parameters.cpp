#include "graph_passes/shard_parameters.h"

#include <algorithm>
#include <map>

#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/accumulator.h"
#include "graph_passes/match.h"
#include "graph_passes/reduce_beside.h"
#include "graph_passes/step_sections.h"

namespace weir {
namespace {

std::vector<Node*> NodesOf(const Graph& graph, std::string_view op, Phase phase) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (node->op() == op && node->phase == phase) nodes.push_back(node.get());
  }
  return nodes;
}

void Remove(Graph& graph, Node* node) {
  Value* output = node->out();
  graph.RemoveNode(node);
  graph.RemoveValue(output);
}

// Casts that widen what was gathered widen the rows instead, and what they make is gathered.
void CastBeforeGathers(Graph& graph) {
  for (Node* gather : NodesOf(graph, "AllGatherRows", Phase::kBegin)) {
    const std::vector<Use> uses = gather->out()->uses;
    for (const Use& use : uses) {
      if (use.node->phase != Phase::kBegin) continue;
      graph.SetInput(use.node, 0, gather->in(0));
      InferNode(*use.node);
      Value* cast = use.node->out();
      const std::vector<Use> readers = cast->uses;
      Builder builder(graph, std::next(use.node->self)->get());
      builder.SetPhase(Phase::kBegin);
      builder.SetSource(gather->source);
      builder.SetStem(cast->name + ".whole");
      Value* whole = builder.Op("AllGatherRows", {cast}, gather->attributes);
      for (const Use& reader : readers) graph.SetInput(reader.node, static_cast<size_t>(reader.index), whole);
    }
    if (gather->out()->uses.empty()) Remove(graph, gather);
  }
}

class Sharding {
 public:
  Sharding(Graph& graph, PassContext& context, const StepSections& sections, int64_t ranks)
      : graph_(graph), context_(context), sections_(sections), ranks_(ranks) {}

  // Once for each section that reads it.
  void GatherAhead(Node* gather) {
    std::map<int, std::vector<Use>> readers;
    for (const Use& use : gather->out()->uses) readers[sections_.Of(use.node)].push_back(use);
    context_.Matched(*gather);
    context_.where.back() += StrCat(": gathered ", readers.size(), " times a micro-batch");
    for (const auto& [section, uses] : readers) Gather(*gather, section, uses);
    Remove(graph_, gather);
  }

  void ReduceToRows() {
    std::vector<Gradient> found;
    for (const auto& node : graph_.nodes()) {
      if (node->op() != "TreeReduceGradient") continue;
      if (auto gradient = Find(*node)) found.push_back(*gradient);
    }
    std::ranges::stable_sort(found, {}, [&](const Gradient& g) { return sections_.PositionOf(g.maker); });
    int64_t staging = 0;
    for (const Gradient& g : found) staging = std::max(staging, StagingElements(NumElements(ToDims(g.sum->in(0)->shape)), ranks_));
    for (Gradient& g : found) g.begin_before = PlaceBeside(*g.maker, sections_.first_backward());
    for (Gradient& g : found) Begin(g, staging);
    Node* const norm = FirstOfNorm(graph_);
    for (const Gradient& g : found) Join(g, norm);
    for (const Gradient& g : found) ZeroWhereItBegins(g);  // behind what is joined there, and free then
  }

 private:
  struct Gradient {
    Value *accumulator, *parameter;
    Node *zero, *maker, *sum, *slice;  // of the accumulator: its first and last link, the sum over ranks, the rows that are stepped
    Value* whole = nullptr;            // the accumulator's last version
    Value* rows = nullptr;
    Node* begin_before = nullptr;
    Node* join_before = nullptr;  // nullptr: the norm
    int64_t event = 0;
  };

  Attributes Group(int64_t event) const { return {{"group", std::string("world")}, {"ranks", ranks_}, {"event", event}}; }

  void Gather(const Node& gather, int section, const std::vector<Use>& uses) {
    const int64_t event = events_++;
    Node* ahead = sections_.Ahead(section);
    Builder builder(graph_, ahead);
    builder.SetPhase(ahead->phase);
    builder.SetSource(gather.source);
    builder.SetStem(gather.in(0)->name + ".coming");
    Attributes attributes = gather.attributes;
    attributes.Set("event", event);
    Value* coming = builder.Op("AllGatherRows", {gather.in(0)}, attributes);
    Node* first = std::ranges::min_element(uses, {}, [&](const Use& use) { return sections_.PositionOf(use.node); })->node;
    builder.SetPosition(first);
    builder.SetPhase(first->phase);
    builder.SetStem(gather.in(0)->name + ".whole");
    Value* whole = builder.Op("JoinBeside", {coming}, Group(event));
    for (const Use& use : uses) graph_.SetInput(use.node, static_cast<size_t>(use.index), whole);
  }

  // nullopt: what shard_optimizer left whole, or nothing adds to.
  std::optional<Gradient> Find(Node& sum) {
    auto* accumulator = const_cast<Value*>(AccumulatorOf(sum.in(0)));
    Value& parameter = ParameterOf(graph_, *accumulator);
    const auto& info = *parameter.parameter;
    if (!info.shard || info.shared_by != "world" || accumulator->shape[0] == parameter.shape[0]) return std::nullopt;
    Node *zero = accumulator->uses.at(0).node, *maker = sum.in(0)->producer;
    const auto slice = std::ranges::find_if(sum.out()->uses, [](const Use& use) { return Is(*use.node, "Slice"); });
    if (maker == zero || slice == sum.out()->uses.end()) {
      context_.Missed(sum, "nothing adds to this gradient");
      return std::nullopt;
    }
    return Gradient{.accumulator = accumulator, .parameter = &parameter, .zero = zero, .maker = maker, .sum = &sum, .slice = slice->node};
  }

  void Begin(Gradient& g, int64_t staging) {
    g.accumulator->shape = g.parameter->shape;
    g.whole = g.sum->in(0);
    g.event = events_++;
    g.join_before = sections_.Begin(sections_.Of(g.maker->phase == Phase::kBackward ? g.maker : sections_.first_backward()) + 2);
    Builder builder(graph_, g.begin_before);
    builder.SetPhase(Phase::kBackward);
    builder.SetSource(g.sum->source);
    builder.SetStem(g.accumulator->name + ".rows");
    Attributes attributes = Group(g.event);
    attributes.Set("staging", staging);
    std::vector<Value*> inputs = {g.whole, g.accumulator};
    if (handed_ != nullptr) inputs.push_back(handed_);
    const auto results = builder.Ops("ReduceRows", inputs, 2, attributes);
    g.rows = results[0];
    handed_ = results[1];
    context_.Matched(*g.rows->producer);
  }

  // The accumulator of the whole is a value of its own; what is kept are this rank's rows.
  void ZeroWhereItBegins(const Gradient& g) {
    Value* old = g.zero->out();
    Node* link = std::ranges::min_element(old->uses, {}, [&](const Use& use) { return sections_.PositionOf(use.node); })->node;
    Builder builder(graph_, link);
    builder.SetPhase(link->phase);
    builder.SetSource("gradient '" + g.accumulator->name + "'");
    builder.SetStem(g.accumulator->name + ".whole");
    graph_.ReplaceUses(old, builder.Op("Zeros", {}, {{"dims", ToDims(old->shape)}}));
    Remove(graph_, g.zero);
  }

  void Join(const Gradient& g, Node* norm) {
    Node* before = g.join_before != nullptr ? g.join_before : norm;
    Builder builder(graph_, before);
    builder.SetPhase(before->phase);
    builder.SetSource(g.sum->source);
    builder.SetStem(g.accumulator->name + ".sum");
    std::vector<Value*> inputs = {g.rows, g.whole};
    if (g.join_before == nullptr) inputs.push_back(handed_);
    Value* rows = builder.Op("JoinBeside", inputs, Group(g.event));
    Measure(g, rows);
    graph_.ReplaceUses(g.slice->out(), rows);
    Remove(graph_, g.slice);
    Remove(graph_, g.sum);
  }

  void Measure(const Gradient& g, Value* rows) {
    const Use norm = *std::ranges::find_if(g.sum->out()->uses, [](const Use& use) { return use.node->phase == Phase::kNorm; });
    std::vector<int64_t> elements;
    const int64_t total = g.parameter->parameter->shard->total, row = NumElements(ToDims(rows->shape)) / std::max<int64_t>(1, rows->shape[0].Constant());
    for (int64_t member = 0; member < ranks_; ++member) elements.push_back(ShareOf(total, ranks_, member).size() * row);
    Builder builder(graph_, norm.node);
    builder.SetPhase(Phase::kNorm);
    builder.SetSource(g.sum->source);
    builder.SetStem(g.accumulator->name + ".squares");
    Value* squares = builder.Op("BlockSquares", {rows}, {{"group", std::string("world")}, {"elements", elements}, {"whole", int64_t{1}}});
    graph_.SetInput(norm.node, static_cast<size_t>(norm.index), squares);
  }

  Graph& graph_;
  PassContext& context_;
  const StepSections& sections_;
  const int64_t ranks_;
  Value* handed_ = nullptr;  // staging, as the last sum left it
  int64_t events_ = 0;
};

}  // namespace

bool ShardParameters::Run(Graph& graph, PassContext& context) {
  context.listed = true;
  const LayerSearch search = FindLayers(graph);
  WEIR_CHECK(!search.layers.empty(), ErrorCode::kInvalidArgument, "--shard-parameters: no layers to gather weights for: ", search.why,
             "; use --shard-optimizer alone");
  CastBeforeGathers(graph);
  const auto gathers = NodesOf(graph, "AllGatherRows", Phase::kBegin);
  std::vector<const Value*> weights;
  for (const Node* gather : gathers) weights.push_back(gather->out());
  const StepSections sections(graph, search.layers, weights);
  Sharding sharding(graph, context, sections, ranks_);
  for (Node* gather : gathers) sharding.GatherAhead(gather);
  if (gradients_) sharding.ReduceToRows();
  return true;
}

}  // namespace weir
