#include "graph_passes/fuse_attention.h"

#include <cmath>

#include "graph/error.h"
#include "graph_passes/match.h"
#include "graph_passes/match_attention.h"
#include "graph_passes/parameters.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

const std::vector<int64_t> kSwapHeads = {0, 2, 1, 3};

// Exporters write 1/sqrt(D) once, or its square root on both sides; the product then misses it by a
// rounding. What is within two float32 roundings of it is meant to be it.
double SnapScale(double scale, const Dim& channels) {
  if (!channels.IsConstant()) return scale;
  const auto exact = static_cast<float>(1 / std::sqrt(static_cast<double>(channels.Constant())));
  return std::abs(scale / exact - 1) < 2.5e-7 ? exact : static_cast<float>(scale);
}

// Everything that Attention needs, q k v as [batch, sequence, heads, channels].
struct Fused {
  Value *q, *k, *v, *sinks;
  double scale, softcap;
  Mask mask;
};

Value* Emit(Graph& graph, Node& before, const Fused& fused) {
  Attributes attributes = {{"scale", fused.scale}};
  if (!fused.mask.causal) attributes.Set("causal", int64_t{0});
  if (fused.mask.window > 0) attributes.Set("window", fused.mask.window);
  if (fused.softcap > 0)
    attributes.Set("softcap", static_cast<double>(static_cast<float>(fused.softcap)));
  std::vector<Value*> inputs = {fused.q, fused.k, fused.v};
  if (fused.sinks != nullptr) inputs.push_back(fused.sinks);
  Value* y = graph.AddValue(before.out()->name);
  Node* node =
      graph.AddNode(GetOp("Attention", "ai.weir"), inputs, {y}, std::move(attributes), &before);
  node->source = before.source;
  InferNode(*node);
  return y;
}

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context) : graph_(graph), context_(context), constants_(graph) {}

  bool FuseEager(Node& node) {
    EagerAttention match;
    std::string why;
    if (!MatchEagerAttention(node, constants_, match, why)) return !why.empty() && Miss(node, why);
    const auto mask = RecognizeMask(constants_, match.masks, false, why);
    if (!mask) return Miss(node, why);
    Builder builder = At(graph_, node);
    Value* k = match.k_transposed ? TransposeBy(builder, match.k, {0, 1, 3, 2}) : match.k;
    Value* v = match.v;
    if (!FitHeads(match.q, k, v, why)) return Miss(node, why);
    Value* sinks = nullptr;
    if (match.sinks != nullptr) {
      sinks = Sinks(match.sinks, match.q->shape[1]);
      if (sinks == nullptr) return Miss(node, "the sinks are not one value per head");
    }
    const auto tokens_first = [&](Value* x) { return TransposeBy(builder, x, kSwapHeads); };
    const Fused fused{tokens_first(match.q),
                      tokens_first(k),
                      tokens_first(v),
                      sinks,
                      SnapScale(match.scale, match.q->shape[3]),
                      match.softcap,
                      *mask};
    graph_.ReplaceUses(node.out(), TransposeBy(builder, Emit(graph_, node, fused), kSwapHeads));
    return true;
  }

  // ai.onnx Attention(q, k, v, mask?, past?...)
  bool FuseOp(Node& node) {
    std::string why;
    std::vector<MaskUse> masks;
    if (node.in(3) != nullptr) masks.push_back({node.in(3), false});
    const auto mask =
        RecognizeMask(constants_, masks, node.attributes.Int("is_causal", 0) != 0, why);
    if (!mask) return Miss(node, why);
    for (size_t i = 4; i < node.inputs.size(); ++i) {
      if (node.in(i) != nullptr && !IsEmpty(node.in(i)))
        return Miss(node, "it has a past or a length input");
    }
    for (size_t i = 1; i < node.outputs.size(); ++i) {
      if (node.out(i) != nullptr && !node.out(i)->uses.empty())
        return Miss(node, "its scores or its cache are used");
    }
    Builder builder = At(graph_, node);
    const bool flat = node.in(0)->has_shape && node.in(0)->shape.size() == 3;
    Value *q = node.in(0), *k = node.in(1), *v = node.in(2);
    if (flat) {
      const int64_t heads = node.attributes.Int("q_num_heads"),
                    kv_heads = node.attributes.Int("kv_num_heads");
      q = SplitHeads(builder, q, heads);
      k = SplitHeads(builder, k, kv_heads);
      v = SplitHeads(builder, v, kv_heads);
      if (!q || !k || !v) return Miss(node, "the channels do not divide by the heads");
    } else {
      if (!FitHeads(q, k, v, why)) return Miss(node, why);
      for (Value** x : {&q, &k, &v}) *x = TransposeBy(builder, *x, kSwapHeads);
    }
    const Dim& channels = q->shape[3];
    const double plain =
        channels.IsConstant() ? 1 / std::sqrt(static_cast<double>(channels.Constant())) : 1;
    const double scale = SnapScale(node.attributes.Float("scale", plain), channels);
    Value* y =
        Emit(graph_, node, {q, k, v, nullptr, scale, node.attributes.Float("softcap", 0), *mask});
    const Shape& s = y->shape;
    y = flat ? ReshapeTo(builder, y, {s[0], s[1], s[2] * s[3]})
             : TransposeBy(builder, y, kSwapHeads);
    graph_.ReplaceUses(node.out(), y);
    return true;
  }

 private:
  bool Miss(const Node& node, const std::string& why) {
    context_.Missed(node, why);
    return false;
  }

  static bool IsEmpty(const Value* value) {
    if (!value->has_shape) return false;
    for (const Dim& dim : value->shape) {
      if (dim == Dim(0)) return true;
    }
    return false;
  }

  // Repeated kv heads are taken back; what is left must divide the query heads.
  static bool FitHeads(const Value* q, Value*& k, Value*& v, std::string& why) {
    why = "q, k and v are not [batch,heads,sequence,channels] of one sequence";
    for (const Value* x : {q, static_cast<const Value*>(k), static_cast<const Value*>(v)}) {
      if (!x->has_shape || x->shape.size() != 4 || !(x->shape[0] == q->shape[0]) ||
          !(x->shape[2] == q->shape[2]) || !x->shape[1].IsConstant()) {
        return false;
      }
    }
    const Repeated keys = StripRepeat(k), values = StripRepeat(v);
    if (keys.times == values.times) {
      k = keys.base;
      v = values.base;
    }
    why = "the kv heads do not divide the query heads";
    return k->shape[1] == v->shape[1] && q->shape[1].Constant() % k->shape[1].Constant() == 0 &&
           k->shape[3] == q->shape[3];
  }

  // [heads] from [1,heads,1,1] or a Reshape of the weight itself
  Value* Sinks(Value* sinks, const Dim& heads) {
    const Node* reshape = Made(sinks, "Reshape");
    if (reshape != nullptr) sinks = reshape->in(0);
    if (!sinks->has_shape || !(Product(sinks->shape) == heads)) return nullptr;
    const bool by_head = reshape == nullptr ? sinks->shape.size() >= 3 &&
                                                  sinks->shape[sinks->shape.size() - 3] == heads
                                            : sinks->shape.size() == 1;
    if (!by_head) return nullptr;
    if (IsInitializer(sinks)) return SqueezedParameter(graph_, sinks);
    return sinks->shape.size() == 1 ? sinks : nullptr;
  }

  // [batch,sequence,heads*channels] as [batch,sequence,heads,channels]
  static Value* SplitHeads(Builder& builder, Value* x, int64_t heads) {
    const Dim channels =
        x->has_shape && x->shape.size() == 3 ? DivExact(x->shape[2], heads) : Dim();
    if (!channels.IsConstant()) return nullptr;
    return ReshapeTo(builder, x, {x->shape[0], x->shape[1], heads, channels});
  }

  Graph& graph_;
  PassContext& context_;
  LaunchConstants constants_;
};

}  // namespace

std::string FuseAttention::doc() const {
  return "p = Softmax(Add(Mul(MatMul(q, Transpose(k)), scale), mask));  y = MatMul(p, v)\n"
         "  ==> y = Transpose(Attention<scale, causal, window, softcap>(q', k', v', sinks))\n"
         "q' = Transpose(q) and so on: [batch,sequence,heads,channels]. Scales on q and k, Where "
         "masks, guards\n"
         "against NaN, soft caps, sink columns and repeated kv heads are taken in. Masks are "
         "proved by\n"
         "evaluation (recognize_mask.h).";
}

bool FuseAttention::Run(Graph& graph, PassContext& context) {
  Fuser fuser(graph, context);
  for (const auto& node : graph.nodes()) {
    if (node->out(0) == nullptr || (node->out(0)->uses.empty() && !graph.IsOutput(node->out(0))))
      continue;
    const bool fused = Is(*node, "Attention") ? fuser.FuseOp(*node) : fuser.FuseEager(*node);
    if (fused) context.Matched(*node);
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
