#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph_passes/lower_contrib.h"
#include "graph_passes/match.h"
#include "graph_passes/notices.h"
#include "graph_passes/parameters.h"
#include "graph_passes/rotary_cache.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

// Present keys and values are no results of training.
void DropPresent(Graph& graph, const Node& node) {
  std::vector<std::string> dropped;
  std::erase_if(graph.outputs, [&](const Value* output) {
    const bool present = output->producer == &node && output->producer_index > 0;
    if (present) dropped.push_back(output->name);
    return present;
  });
  for (const std::string& name : dropped)
    graph.stripped.push_back(StrCat("output '", name, "': key-value cache"));
  for (size_t o = 1; o < node.outputs.size(); ++o) {
    WEIR_CHECK(node.out(o) == nullptr || node.out(o)->uses.empty(), ErrorCode::kUnsupportedOp,
               NameOf(node), ": its key-value cache '", node.out(o)->name,
               "' is read by other nodes");
  }
}

class GroupQuery {
 public:
  GroupQuery(Graph& graph, Node& node) : graph_(graph), node_(node), builder_(At(graph, node)) {
    heads_ = node.attributes.Int("num_heads");
    kv_heads_ = node.attributes.Int("kv_num_heads");
  }

  void Lower() {
    Check();
    auto [q, k, v] = Operands();
    q = Normalised(q, 14, "q_norm_epsilon");
    k = Normalised(k, 15, "k_norm_epsilon");
    if (node_.attributes.Int("do_rotary", 0) != 0) Rotate(q, k);
    std::vector<Value*> inputs = {q, k, v};
    if (Value* sinks = Sinks()) inputs.push_back(sinks);
    Value* y = graph_.AddValue(node_.out(0)->name + ".heads");
    Node* attention =
        graph_.AddNode(GetOp("Attention", "ai.weir"), inputs, {y}, AttentionAttributes(), &node_);
    attention->source = node_.source;
    InferNode(*attention);
    y = builder_.Op("Reshape", {y, builder_.Ints({0, 0, heads_ * head_dim_})});
    graph_.ReplaceUses(node_.out(0), y);
    DropPresent(graph_, node_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& why) const {
    throw Error(ErrorCode::kUnsupportedOp, StrCat(NameOf(node_), ": ", why));
  }

  void Check() const {
    if (heads_ <= 0 || kv_heads_ <= 0 || heads_ % kv_heads_ != 0) {
      Refuse(StrCat(heads_, " query heads over ", kv_heads_, " key heads"));
    }
    if (node_.in(10) != nullptr)
      Refuse("an attention bias (input 10) is not known; only causal and window masks are");
    if (node_.in(9) != nullptr && node_.in(9)->role != Role::kInput) {
      Refuse("computed position ids (input 9) are not known; positions are 0 .. sequence-1");
    }
    for (const char* type : {"k_quant_type", "v_quant_type"}) {
      const std::string kind = node_.attributes.String(type, "NONE");
      if (kind != "NONE" && kind != "none")
        NoticeOnce(graph_, "the file's quantised key-value cache is not used in training");
    }
  }

  Value* Heads(Value* x, int64_t count, int64_t dim) {
    return builder_.Op("Reshape", {x, builder_.Ints({0, 0, count, dim})});
  }

  // q, k, v as [B, S, heads, D], from one packed tensor or three.
  std::tuple<Value*, Value*, Value*> Operands() {
    Value* q = node_.in(0);
    if (!q->has_shape || q->shape.size() != 3 || !q->shape[2].IsConstant())
      Refuse("the query has no known shape [B,S,width]");
    const int64_t width = q->shape[2].Constant();
    const bool packed = node_.in(1) == nullptr;
    const int64_t count = packed ? heads_ + 2 * kv_heads_ : heads_;
    if (width % count != 0) Refuse(StrCat("width ", width, " is no multiple of ", count, " heads"));
    head_dim_ = width / count;
    if (!packed)
      return {Heads(q, heads_, head_dim_), Heads(node_.in(1), kv_heads_, head_dim_),
              Heads(node_.in(2), kv_heads_, head_dim_)};
    const int64_t query = heads_ * head_dim_, key = kv_heads_ * head_dim_;
    const auto parts =
        builder_.Ops("Split", {q, builder_.Ints({query, key, key})}, 3, {{"axis", int64_t{2}}});
    return {Heads(parts[0], heads_, head_dim_), Heads(parts[1], kv_heads_, head_dim_),
            Heads(parts[2], kv_heads_, head_dim_)};
  }

  // Per-head norm of queries (input 14) or keys (15) before the rotation.
  Value* Normalised(Value* x, size_t gain, const char* own_epsilon) {
    Value* gamma = node_.in(gain);
    if (gamma == nullptr) return x;
    const double epsilon = node_.attributes.Float(own_epsilon, node_.attributes.Float("qk_norm_epsilon", 1e-6));
    return builder_.Op("RmsNorm", {x, IsInitializer(gamma) ? AsParameter(graph_, gamma) : gamma},
                       {{"epsilon", epsilon}});
  }

  void Rotate(Value*& q, Value*& k) {
    Value *cos = node_.in(7), *sin = node_.in(8);
    if (cos == nullptr || sin == nullptr)
      Refuse("do_rotary without cos and sin tables (inputs 7 and 8)");
    Value* length = ShapeTensor(builder_, {Dim::Sequence()});
    if (length == nullptr)
      Refuse("the model has no token input [batch,sequence] to count positions by");
    const auto tables = RotaryTables(builder_, cos, sin, length);
    const int64_t interleaved = node_.attributes.Int("rotary_interleaved", 0);
    Attributes attributes;
    if (interleaved != 0)
      attributes = {{"input_interleaved", int64_t{1}}, {"output_interleaved", int64_t{1}}};
    q = builder_.Op("Rotary", {q, tables.first, tables.second}, attributes);
    k = builder_.Op("Rotary", {k, tables.first, tables.second}, attributes);
  }

  Value* Sinks() {
    if (Value* sinks = node_.in(11))
      return IsInitializer(sinks) ? AsParameter(graph_, sinks) : sinks;
    if (node_.attributes.Int("smooth_softmax", 0) != 1) return nullptr;  // -1 is off too
    const std::vector<float> zeros(static_cast<size_t>(heads_), 0.0f);
    return graph_.AddConstant("smooth_softmax", TensorData::FromFloats({heads_}, zeros));
  }

  Attributes AttentionAttributes() const {
    const Attributes& a = node_.attributes;
    const double given = a.Float("scale", 0);
    Attributes out = {
        {"scale", given != 0 ? given : 1 / std::sqrt(static_cast<double>(head_dim_))}};
    if (a.Int("causal", 1) == 0) out.Set("causal", int64_t{0});
    if (a.Int("local_window_size", -1) > 0) out.Set("window", a.Int("local_window_size", -1));
    if (a.Float("softcap", 0) != 0) out.Set("softcap", a.Float("softcap", 0));
    return out;
  }

  Graph& graph_;
  Node& node_;
  Builder builder_;
  int64_t heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
};

// MultiHeadAttention as ai.onnx Attention, whose mask is proved by the attention passes.
bool LowerMultiHead(Graph& graph, Node& node) {
  const int64_t heads = node.attributes.Int("num_heads");
  const Value *q = node.in(0), *k = node.in(1), *v = node.in(2);
  const bool plain = k != nullptr && v != nullptr && q->has_shape && q->shape.size() == 3 &&
                     k->has_shape && k->shape.size() == 3 && v->has_shape && v->shape.size() == 3;
  WEIR_CHECK(plain, ErrorCode::kUnsupportedOp, NameOf(node),
             ": only separate queries, keys and values [B,S,width] are known, not packed ones");
  WEIR_CHECK(node.in(4) == nullptr, ErrorCode::kUnsupportedOp, NameOf(node),
             ": a key padding mask (input 4) is not known");
  for (size_t i : {6, 7}) {
    WEIR_CHECK(node.in(i) == nullptr || node.in(i)->role == Role::kInput, ErrorCode::kUnsupportedOp,
               NameOf(node), ": a computed past (input ", i, ") is not known");
  }
  if (FindOp("Attention", "") == nullptr || !FindOp("Attention", "")->domain.empty()) return false;
  Builder builder = At(graph, node);
  std::vector<Value*> inputs = {node.in(0), node.in(1), node.in(2)};
  if (Value* bias = node.in(3)) {
    std::vector<int64_t> widths;
    for (const Value* x : inputs) widths.push_back(x->shape[2].Constant());
    const auto parts =
        builder.Ops("Split", {bias, builder.Ints(widths)}, 3, {{"axis", int64_t{0}}});
    for (size_t i = 0; i < 3; ++i) inputs[i] = builder.Op("Add", {inputs[i], parts[i]});
  }
  if (node.in(5) != nullptr) inputs.push_back(node.in(5));
  Attributes attributes = {{"q_num_heads", heads},
                           {"kv_num_heads", heads},
                           {"is_causal", node.attributes.Int("unidirectional", 0)}};
  if (node.attributes.Float("scale", 0) != 0)
    attributes.Set("scale", node.attributes.Float("scale", 0));
  graph.ReplaceUses(node.out(0), builder.Op("Attention", inputs, attributes));
  DropPresent(graph, node);
  return true;
}

}  // namespace

std::string LowerContribAttention::doc() const {
  return "y, present.. = GroupQueryAttention(qkv, , , past.., seqlens, total, cos_cache, "
         "sin_cache, , , sinks)  ==>\n"
         "q, k, v = Split(qkv); q, k = Rotary(RmsNorm?(q, k), RotaryTable); y = Attention(q, k, v, "
         "sinks)\n"
         "MultiHeadAttention(q, k, v, bias, , mask)  ==>  ai.onnx Attention(q + bias.., mask)";
}

bool LowerContribAttention::Run(Graph& graph, PassContext& context) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (node->schema->domain == "com.microsoft") nodes.push_back(node.get());
  }
  for (Node* node : nodes) {
    if (node->op() == "GroupQueryAttention") {
      GroupQuery(graph, *node).Lower();
    } else if (node->op() != "MultiHeadAttention" || !LowerMultiHead(graph, *node)) {
      continue;
    }
    context.Matched(*node);
  }
  if (context.matches > 0) graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
