#include "graph_passes/fuse_experts.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "graph/error.h"
#include "graph_passes/expert_stack.h"
#include "graph_passes/experts_formula.h"
#include "graph_passes/match.h"
#include "graph_passes/notices.h"
#include "graph_passes/router.h"

namespace weir {
namespace {

// What all routes of a layer agree on.
struct Layer {
  Value *x = nullptr, *weights = nullptr;
  RouteTerm form;                        // of any one route
  std::map<int64_t, RouteTerm> experts;  // by expert
  std::string why;                       // empty: every route of every token is there
  bool incomplete = false;               // only routes are missing
};

bool SameForm(const RouteTerm& a, const RouteTerm& b) {
  return a.halves == b.halves && a.width == b.width && a.activation == b.activation &&
         a.alpha == b.alpha && a.beta == b.beta && a.limit == b.limit && a.scale == b.scale &&
         (a.gate.bias == kNoExpr) == (b.gate.bias == kNoExpr) &&
         (a.up.bias == kNoExpr) == (b.up.bias == kNoExpr) &&
         (a.down.bias == kNoExpr) == (b.down.bias == kNoExpr);
}

bool SameTensors(const RouteTerm& a, const RouteTerm& b) {
  const auto same = [](const ExpertMatrix& p, const ExpertMatrix& q) {
    return p.matrix == q.matrix && p.bias == q.bias;
  };
  return same(a.gate, b.gate) && same(a.up, b.up) && same(a.down, b.down);
}

class Reader {
 public:
  Reader(const ExprPool& pool, const Routing& routing) : pool_(pool), routing_(routing) {}

  // Reads rows as the experts' output; `why` says what is wrong with them.
  Layer Read(const RowTensor& y) {
    for (int64_t n = 0; n < routing_.tokens() && layer_.why.empty(); ++n)
      ReadToken(n, y.cells[static_cast<size_t>(n)]);
    if (layer_.why.empty() && missing_ > 0) {
      layer_.incomplete = true;
      layer_.why =
          StrCat(missing_, " of ", routing_.ids.size(), " routes of the probe add nothing");
    }
    return layer_;
  }

 private:
  void ReadToken(int64_t token, ExprId cell) {
    std::set<int64_t> slots;
    if (!pool_.IsNumber(cell, 0)) {
      for (ExprId term : pool_.Terms(cell)) {
        if (!ReadTerm(token, term, slots)) return;
      }
    }
    missing_ += routing_.top_k - static_cast<int64_t>(slots.size());
  }

  bool ReadTerm(int64_t token, ExprId term, std::set<int64_t>& slots) {
    const auto route = ReadRoute(pool_, term, layer_.why);
    if (!route) return false;
    const Expr &weight = pool_[route->weight], &x = pool_[route->x];
    if (weight.op != Expr::Op::kScalar) return Refuse("a route's weight is computed per route");
    const int64_t slot = weight.index - token * routing_.top_k;
    if (slot < 0 || slot >= routing_.top_k) return Refuse("a token uses another token's weight");
    if (!slots.insert(slot).second) return Refuse("a token uses one weight twice");
    if (x.index != token) return Refuse("a token's experts read another token");
    if (layer_.x == nullptr) {
      layer_.x = x.value;
      layer_.weights = weight.value;
      layer_.form = *route;
    }
    if (layer_.x != x.value || layer_.weights != weight.value)
      return Refuse("routes read different tensors");
    if (!SameForm(layer_.form, *route)) return Refuse("experts differ in their formula");
    const auto [it, added] = layer_.experts.emplace(routing_.id(token, slot), *route);
    return added || SameTensors(it->second, *route) ||
           Refuse("one expert uses different weights for different tokens");
  }

  bool Refuse(std::string why) {
    layer_.why = std::move(why);
    return false;
  }

  const ExprPool& pool_;
  const Routing& routing_;
  Layer layer_;
  int64_t missing_ = 0;
};

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context, const Router& router)
      : graph_(graph), context_(context), router_(router) {}

  bool Run() {
    const auto routings = FullRoutings(router_);
    RowTrace trace(pool_, routings[0], router_);
    if (trace.Find(router_.ids) == nullptr) {  // several choices per token choose groups
      return IsConcrete(router_.ids->shape) && Miss(trace.why());
    }
    cone_.insert(router_.ids);
    for (auto it = std::next(router_.node->self); it != graph_.nodes().end(); ++it) {
      Node& node = **it;
      if (!std::any_of(node.inputs.begin(), node.inputs.end(),
                       [this](Value* v) { return cone_.contains(v); }))
        continue;
      const bool followed = trace.Step(node);
      if (trace.truncated() != 0) RefuseTruncated(trace.truncated());
      if (!followed) {
        if (UsesExperts(trace, node) && no_layer_.empty()) why_ = trace.why();
        continue;
      }
      nodes_.push_back(&node);
      for (Value* output : node.outputs) {
        if (output != nullptr && trace.Find(output) != nullptr) cone_.insert(output);
      }
      const Layer layer = ReadOutput(trace, routings[0], node.out(0));
      if (layer.x == nullptr) {
        // The first output that is no layer says most; later ones are sums with other branches.
        if (no_layer_.empty()) no_layer_ = layer.why;
        continue;
      }
      if (layer.why.empty() && Confirm(routings[1], node, layer)) return Replace(node, layer);
      if (!layer.why.empty()) why_ = layer.why;
      if (layer.incomplete) most_ = std::max(most_, static_cast<int64_t>(layer.experts.size()));
    }
    if (most_ > 0 && most_ < router_.experts) RefuseTruncated(most_);
    if (why_.empty()) why_ = no_layer_;
    if (!why_.empty()) context_.Missed(*router_.node, why_);
    return false;
  }

 private:
  [[noreturn]] void RefuseTruncated(int64_t kept) const {
    throw Error(
        ErrorCode::kInvalidModel,
        StrCat(
            "the experts after ", NameOf(*router_.node), " are a loop over ", kept, " of ",
            router_.experts,
            " experts: tracing kept only those that the exporter's sample "
            "input reached, so the file is another model; export again with experts implementation "
            "batched_mm or grouped_mm"));
  }

  bool UsesExperts(const RowTrace& trace, const Node& node) const {
    for (Value* input : node.inputs) {
      const RowTensor* rows = input == nullptr ? nullptr : trace.Find(input);
      if (rows != nullptr && !rows->cells.empty() && pool_.HasExpert(rows->cells[0])) return true;
    }
    return false;
  }

  // The layer that ends in `output`, or nothing (x null) when it is not one row per token.
  Layer ReadOutput(const RowTrace& trace, const Routing& routing, const Value* output) const {
    const RowTensor* y = output == nullptr ? nullptr : trace.Find(output);
    if (y == nullptr || y->opaque.size() != 1 || y->dims.size() < 2) return {};
    if (static_cast<size_t>(y->opaque[0]) + 1 != y->dims.size()) return {};
    if (static_cast<int64_t>(y->cells.size()) != routing.tokens()) return {};
    const bool any = std::any_of(y->cells.begin(), y->cells.end(),
                                 [this](ExprId cell) { return pool_.HasExpert(cell); });
    if (!any) return {};
    Layer layer = Reader(pool_, routing).Read(*y);
    if (layer.x != nullptr && layer.why.empty() &&
        y->dims.back() != layer.x->shape.back().Constant()) {
      layer.why = "the output is not as wide as the input";
    }
    return layer;
  }

  // Traces the same nodes at another routing; the layer must come out the same.
  bool Confirm(const Routing& routing, const Node& last, const Layer& wanted) {
    const Layer layer = Retrace(routing, last);
    if (!layer.why.empty() || !SameLayer(layer, wanted)) {
      why_ = layer.why.empty() ? "another routing gives another formula" : layer.why;
      return false;
    }
    const Layer sparse = Retrace(SparseRouting(router_), last);
    if (sparse.x == nullptr) {
      graph_.notices.push_back(
          StrCat(NameOf(*router_.node),
                 ": the file's loop over experts only runs when every expert gets a token; "
                 "imported as the loop it was traced from"));
      return true;
    }
    if (sparse.why.empty() && SameLayer(sparse, wanted)) return true;
    why_ = "a routing with idle experts gives another formula";
    return false;
  }

  static bool SameLayer(const Layer& a, const Layer& b) {
    if (a.x != b.x || a.weights != b.weights || !SameForm(a.form, b.form)) return false;
    return std::all_of(a.experts.begin(), a.experts.end(), [&b](const auto& entry) {
      const auto it = b.experts.find(entry.first);
      return it != b.experts.end() && SameTensors(it->second, entry.second);
    });
  }

  Layer Retrace(const Routing& routing, const Node& last) {
    RowTrace trace(pool_, routing, router_);
    for (const Node* node : nodes_) {
      if (!trace.Step(*node)) return {};
    }
    return ReadOutput(trace, routing, last.out(0));
  }

  std::optional<ExpertStack> GateUp(const Layer& layer, bool bias) {
    const bool separate = layer.form.halves == RouteTerm::Halves::kSeparate;
    std::vector<ExpertTensors> projections(separate ? 2 : 1);
    for (ExpertTensors& projection : projections) projection.bias = bias;
    for (const auto& [expert, route] : layer.experts) {
      projections[0].tensors.push_back(bias ? route.gate.bias : route.gate.matrix);
      if (separate) projections[1].tensors.push_back(bias ? route.up.bias : route.up.matrix);
    }
    return PlanStack(pool_, projections, layer.form.halves == RouteTerm::Halves::kInterleaved,
                     why_);
  }

  std::optional<ExpertStack> Down(const Layer& layer, bool bias) {
    ExpertTensors down{.tensors = {}, .bias = bias};
    for (const auto& [expert, route] : layer.experts) {
      down.tensors.push_back(bias ? route.down.bias : route.down.matrix);
    }
    return PlanStack(pool_, {down}, false, why_);
  }

  bool Miss(const std::string& why) {
    context_.Missed(*router_.node, why);
    return false;
  }

  // gate_up, down, and their biases as Experts takes them; empty with why_ set when they do not
  // fit.
  std::vector<Value*> Parameters(const Layer& layer) {
    const RouteTerm& form = layer.form;
    const bool gate_bias = form.gate.bias != kNoExpr, down_bias = form.down.bias != kNoExpr;
    if (gate_bias != (form.up.bias != kNoExpr)) {
      why_ = "only one of gate and up has a bias";
      return {};
    }
    std::optional<ExpertStack> plans[4];
    for (int i = 0; i < 4; ++i) {
      const bool bias = i >= 2, wanted = i < 2 || (i == 2 ? gate_bias : down_bias);
      if (!wanted) continue;
      plans[i] = i % 2 == 0 ? GateUp(layer, bias) : Down(layer, bias);
      if (!plans[i]) return {};
    }
    std::vector<Value*> made;
    for (int i = 0; i < (down_bias ? 4 : gate_bias ? 3 : 2); ++i) {
      made.push_back(plans[i] ? MakeStack(graph_, std::move(*plans[i])) : nullptr);
    }
    return made;
  }

  bool Replace(Node& last, const Layer& layer) {
    const RouteTerm& form = layer.form;
    Value* old = last.out(0);
    if (old->shape.size() != 2 && !Same(old->shape, layer.x->shape))
      return Miss("the output has another shape than the input");
    const std::vector<Value*> tensors = Parameters(layer);
    if (tensors.empty()) return Miss(why_);
    Builder builder = At(graph_, last);
    builder.SetSource(StrCat("experts after ", NameOf(*router_.node)));
    const auto flat = [&](Value* value) {
      if (value->shape.size() == 2) return value;
      const int64_t width = value == layer.x ? value->shape.back().Constant() : router_.top_k;
      return builder.Op("Reshape", {value, builder.Ints({-1, width})});
    };
    Value* weights = flat(layer.weights);
    if (form.scale != 1)
      weights = builder.Op("Mul", {weights, builder.Float(static_cast<float>(form.scale))});
    Attributes attributes;
    if (form.activation != "swiglu") attributes.Set("activation", form.activation);
    if (form.alpha != 1) attributes.Set("alpha", form.alpha);
    if (form.beta != 0) attributes.Set("beta", form.beta);
    if (form.limit != std::numeric_limits<double>::infinity()) attributes.Set("limit", form.limit);
    std::vector<Value*> inputs = {flat(layer.x), flat(router_.ids), weights};
    inputs.insert(inputs.end(), tensors.begin(), tensors.end());
    Value* y = builder.Op("Experts", inputs, attributes);
    if (old->shape.size() != 2) y = builder.Op("Reshape", {y, builder.Op("Shape", {layer.x})});
    context_.Matched(*router_.node);
    graph_.ReplaceUses(old, y);
    if (graph_.IsOutput(y)) SwapNames(old, y);
    return true;
  }

  void SwapNames(Value* old, Value* y) {
    const std::string name = old->name;
    graph_.Rename(old, name + ".unfused");
    graph_.Rename(y, name);
  }

  Graph& graph_;
  PassContext& context_;
  const Router router_;
  ExprPool pool_;
  std::unordered_set<const Value*> cone_;
  std::vector<const Node*> nodes_;
  std::string why_, no_layer_;
  int64_t most_ = 0;  // experts of the longest incomplete chain
};

}  // namespace

std::string FuseExperts::doc() const {
  return "ids = TopK(scores);  any way to give row n to experts ids[n,:] and add weights[n,k] * "
         "expert(x[n]):\n"
         "  rows of gathered weights, sorted rows cut by expert, a loop or a mask over experts\n"
         "==>\n"
         "y = Experts(x, ids, weights, gate_up, down, gate_up_bias?, down_bias?)\n"
         "Proved by running the integers of the block at three routings with rows and weights as "
         "terms.";
}

bool FuseExperts::Run(Graph& graph, PassContext& context) {
  bool changed = false;
  for (const Router& router : FindRouters(graph)) changed |= Fuser(graph, context, router).Run();
  if (changed) graph.RemoveDeadNodes();
  return changed;
}

}  // namespace weir
