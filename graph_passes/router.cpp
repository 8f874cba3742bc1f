#include "graph_passes/router.h"

#include <algorithm>

#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr int64_t kMostExperts = 1 << 16;  // that a routing is tried for

// Entries on the last axis of a value, when constant.
int64_t LastDim(const Value* value) {
  if (value == nullptr || !value->has_shape || value->shape.empty()) return 0;
  const Dim& dim = value->shape.back();
  return dim.IsKnown() && dim.IsConstant() ? dim.Constant() : 0;
}

bool IsLastAxis(const Node& node, int64_t fallback) {
  const Value* x = node.in(0);
  const auto axis = NormalAxis(node.attributes.Int("axis", fallback), x->shape.size());
  return axis && *axis + 1 == static_cast<int64_t>(x->shape.size());
}

// Experts a node chooses among (0 when it chooses none) and how many per token.
Router ReadChoice(Node& node) {
  if (node.in(0) == nullptr || !node.in(0)->has_shape || node.in(0)->shape.size() < 2) return {};
  if (!IsFloat(node.in(0)->dtype)) return {};
  if (Is(node, "TopK") && node.out(1) != nullptr && node.attributes.Int("largest", 1) == 1 &&
      IsLastAxis(node, -1)) {
    const auto k = IntsOf(node, 1, "k");
    const int64_t count = k && k->size() == 1 ? (*k)[0] : node.attributes.Int("k", 0);
    return {&node, node.out(1), LastDim(node.in(0)), count};
  }
  if (Is(node, "ArgMax") && IsLastAxis(node, 0) && node.attributes.Int("keepdims", 1) == 1) {
    return {&node, node.out(0), LastDim(node.in(0)), 1};
  }
  return {};
}

// Several single choices side by side (sparse mixer): the Concat routes.
Router ReadJoined(Node& node) {
  if (!Is(node, "Concat") || node.in(0) == nullptr || !node.in(0)->has_shape ||
      !IsLastAxis(node, 0))
    return {};
  Router joined{&node, node.out(0), 0, 0};
  for (Value* input : node.inputs) {
    const Router one = input->producer == nullptr ? Router{} : ReadChoice(*input->producer);
    if (one.ids != input || one.top_k != 1 ||
        (joined.experts != 0 && joined.experts != one.experts))
      return {};
    joined.experts = one.experts;
    ++joined.top_k;
  }
  return joined;
}

// The activation that the scores come from: the input of the product with the gate's weight.
Value* ScoredRows(const Node& node) {
  Value* value = node.in(0);
  for (int steps = 0; value != nullptr && value->producer != nullptr && steps < 64; ++steps) {
    const Node& maker = *value->producer;
    if (maker.op() == "MatMul" || maker.op() == "Gemm" || maker.op() == "Linear") {
      value = maker.in(0);
      while (value->producer != nullptr && RowOps::IsMovement(value->producer->op()))
        value = value->producer->in(0);
      return value;
    }
    Value* next = nullptr;
    for (Value* input : maker.inputs) {
      if (input != nullptr && input->producer != nullptr && IsFloat(input->dtype)) next = input;
    }
    value = next;
  }
  return nullptr;
}

void FindRows(Graph& graph, Router& router) {
  router.rows = ScoredRows(*router.node);
  if (router.rows == nullptr) return;
  router.from_rows.insert(router.rows);
  const auto start =
      router.rows->producer == nullptr ? graph.nodes().begin() : router.rows->producer->self;
  for (auto it = start; it != graph.nodes().end(); ++it) {
    const bool from =
        std::any_of((*it)->inputs.begin(), (*it)->inputs.end(),
                    [&router](const Value* v) { return router.from_rows.contains(v); });
    if (!from || it->get() == router.node)
      continue;  // what follows the choice is traced from the ids
    for (const Value* output : (*it)->outputs) {
      if (output != nullptr) router.from_rows.insert(output);
    }
  }
}

}  // namespace

std::vector<Router> FindRouters(Graph& graph) {
  std::vector<Router> routers;
  for (const auto& node : graph.nodes()) {
    Router router = ReadChoice(*node);
    if (router.ids == nullptr) router = ReadJoined(*node);
    if (router.ids != nullptr && router.top_k >= 1 && router.experts <= kMostExperts &&
        router.experts >= std::max<int64_t>(2, router.top_k)) {
      FindRows(graph, router);
      routers.push_back(std::move(router));
    }
  }
  return routers;
}

std::vector<Routing> FullRoutings(const Router& router) {
  const int64_t experts = router.experts, k = router.top_k, cover = DivCeil(experts, k);
  Routing even{
      .batch = 2, .sequence = DivCeil(cover + 1, 2), .experts = experts, .top_k = k, .ids = {}};
  for (int64_t r = 0; r < even.tokens() * k; ++r) even.ids.push_back(r % experts);
  Routing uneven{
      .batch = 3, .sequence = DivCeil(cover + 3, 3), .experts = experts, .top_k = k, .ids = {}};
  for (int64_t n = 0; n < uneven.tokens(); ++n) {
    for (int64_t slot = 0; slot < k; ++slot) {
      uneven.ids.push_back(n < cover ? experts - 1 - (n * k + slot) % experts : k - 1 - slot);
    }
  }
  return {even, uneven};
}

Routing SparseRouting(const Router& router) {
  Routing sparse{
      .batch = 1, .sequence = 4, .experts = router.experts, .top_k = router.top_k, .ids = {}};
  for (int64_t n = 0; n < sparse.tokens(); ++n) {
    for (int64_t slot = 0; slot < router.top_k; ++slot) {
      sparse.ids.push_back(n == 1 ? slot : router.experts - 1 - slot);
    }
  }
  return sparse;
}

}  // namespace weir
