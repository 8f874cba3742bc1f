#include "graph_passes/stream_lm_head.h"

#include <algorithm>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

// The nodes of one head; `why` says what keeps them from being one.
struct Head {
  Node *linear = nullptr, *loss = nullptr, *gradient = nullptr;
  Node *input_gradient = nullptr, *weight_gradient = nullptr;  // nullptr: not wanted
  std::string why;
};

std::string Name(const Value* value) { return "'" + value->name + "'"; }

// Uses of `value` are by a and b only, and it is no result of the graph.
bool StaysBetween(const Graph& graph, const Value* value, const Node* a, const Node* b) {
  return !graph.IsOutput(value) &&
         std::all_of(value->uses.begin(), value->uses.end(),
                     [&](const Use& use) { return use.node == a || use.node == b; });
}

std::string FindForward(const Graph& graph, Head& head) {
  const Value* logits = head.loss->in(0);
  head.linear = Made(logits, "Linear");
  if (head.linear == nullptr) {
    return StrCat("logits ", Name(logits), " are ",
                  logits->producer ? "made by " + logits->producer->op() : "an input",
                  ", expected Linear");
  }
  if (head.linear->in(2) != nullptr) return "the head has a bias";
  for (const Use& use : logits->uses) {
    if (use.node->op() == "CrossEntropyGradient" && use.index == 0) head.gradient = use.node;
  }
  if (head.gradient == nullptr) return "the loss has no gradient; nothing before it is trained";
  if (!StaysBetween(graph, logits, head.loss, head.gradient))
    return StrCat("logits ", Name(logits), " have other users");
  const Value* lse = head.loss->out(1);
  if (lse != nullptr && !StaysBetween(graph, lse, head.gradient, nullptr)) {
    return StrCat("the log-sum-exp ", Name(lse), " has other users");
  }
  const Node& g = *head.gradient;
  const bool same =
      g.in(1) == head.loss->in(1) && g.in(2) == lse && g.in(3) == head.loss->in(2) && g.in(5) == head.loss->in(3) &&
      g.attributes.Int("ignore_index", -100) == head.loss->attributes.Int("ignore_index", -100);
  if (!same) return "CrossEntropyGradient belongs to another loss";
  return IsScalar(g.in(4), 1) ? "" : "the gradient of the loss is not the constant 1";
}

std::string FindBackward(const Graph& graph, Head& head) {
  const Value *dlogits = head.gradient->out(), *x = head.linear->in(0),
              *weight = head.linear->in(1);
  for (const Use& use : dlogits->uses) {
    Node& node = *use.node;
    if (head.input_gradient == nullptr && Is(node, "MatMul") && use.index == 0 &&
        node.in(1) == weight) {
      head.input_gradient = &node;
    } else if (head.weight_gradient == nullptr && Is(node, "LinearWeightGradient", "ai.weir") &&
               use.index == 1 && node.in(0) == x) {
      head.weight_gradient = &node;
    } else {
      return StrCat("the logits' gradient ", Name(dlogits), " is also used by ", node.op());
    }
  }
  if (graph.IsOutput(dlogits))
    return StrCat("the logits' gradient ", Name(dlogits), " is a result of the graph");
  const Value* acc = head.weight_gradient == nullptr ? nullptr : head.weight_gradient->in(2);
  if (acc != nullptr && acc->producer != nullptr && acc->producer->phase != Phase::kBegin) {
    return StrCat("the accumulator ", Name(acc), " gains from ", acc->producer->op(),
                  " before the head");
  }
  return "";
}

Head FindHead(const Graph& graph, Node& loss) {
  Head head{.loss = &loss, .why = {}};
  head.why = FindForward(graph, head);
  if (head.why.empty()) head.why = FindBackward(graph, head);
  return head;
}

void RemoveUnused(Graph& graph, std::initializer_list<Value*> values) {
  for (Value* value : values) {
    if (value != nullptr && value->producer == nullptr && value->uses.empty())
      graph.RemoveValue(value);
  }
}

// The results keep their values, so names and users stay.
Node& Replace(Graph& graph, const Head& head, int64_t strip, int64_t leaf) {
  const auto output = [](const Node* node) { return node == nullptr ? nullptr : node->out(); };
  Value *logits = head.linear->out(), *lse = head.loss->out(1), *dlogits = head.gradient->out(),
        *one = head.gradient->in(4);
  std::vector<Value*> inputs = {head.linear->in(0), head.linear->in(1), head.loss->in(1),
                                head.loss->in(2)};
  Value* accumulator = head.weight_gradient == nullptr ? nullptr : head.weight_gradient->in(2);
  Value* weights = head.loss->in(3);
  if (accumulator != nullptr || weights != nullptr) inputs.push_back(accumulator);
  if (weights != nullptr) inputs.push_back(weights);
  std::vector<Value*> outputs = {head.loss->out(), output(head.input_gradient),
                                 output(head.weight_gradient)};
  while (outputs.back() == nullptr) outputs.pop_back();
  Attributes attributes{{"ignore_index", head.loss->attributes.Int("ignore_index", -100)},
                        {"strip", strip}};
  if (leaf != StreamLmHead::kDefaultLeaf) attributes.Set("vocab_leaf", leaf);
  const std::string source = head.linear->source;
  const auto removed = {head.weight_gradient, head.input_gradient, head.gradient, head.loss,
                        head.linear};
  auto next = std::next(head.loss->self);
  while (next != graph.nodes().end() &&
         std::find(removed.begin(), removed.end(), next->get()) != removed.end())
    ++next;
  Node* before = next == graph.nodes().end() ? nullptr : next->get();
  for (Node* node : removed) {
    if (node != nullptr) graph.RemoveNode(node);
  }
  RemoveUnused(graph, {logits, lse, dlogits, one});
  Node* node = graph.AddNode(GetOp("RingDtp", "ai.weir"), std::move(inputs), std::move(outputs),
                             attributes, before);
  node->source = source;
  InferNode(*node);
  return *node;
}

}  // namespace

bool StreamLmHead::Run(Graph& graph, PassContext& context) {
  context.listed = true;
  std::vector<Node*> losses;
  for (const auto& node : graph.nodes()) {
    if (Is(*node, "CrossEntropy", "ai.weir")) losses.push_back(node.get());
  }
  for (Node* loss : losses) {
    const Head head = FindHead(graph, *loss);
    if (head.why.empty()) {
      context.Matched(Replace(graph, head, strip_, leaf_));
    } else {
      context.Missed(*loss, head.why);
    }
  }
  if (context.matches == 0) {
    std::string reasons = losses.empty() ? "\n  the graph has no CrossEntropy" : "";
    for (const std::string& miss : context.misses) reasons += "\n  " + miss;
    throw Error(ErrorCode::kInvalidArgument,
                StrCat("--strip ", strip_,
                       ": no head can be cut into strips; leave the flag out or change the model:",
                       reasons));
  }
  return true;
}

}  // namespace weir
