#include <limits>

#include "graph/error.h"
#include "graph_passes/dequantize.h"
#include "graph_passes/expert_stack.h"
#include "graph_passes/lower_contrib.h"
#include "graph_passes/match.h"
#include "graph_passes/notices.h"
#include "graph_passes/parameters.h"

namespace weir {
namespace {

// Reads one MoE or QMoE node. Inputs are found by position; an absent slot stays absent.
class MoeNode {
 public:
  MoeNode(Graph& graph, Node& node) : graph_(graph), node_(node), builder_(At(graph, node)) {}

  void Lower() {
    ReadWeights();
    ReadActivation();
    Value* x = node_.in(0);
    WEIR_CHECK(x->has_shape && !x->shape.empty() && x->shape.back().IsConstant(),
               ErrorCode::kInvalidShape, Name(), "input 0 has no known hidden width");
    hidden_ = x->shape.back().Constant();
    Value* rows =
        x->shape.size() == 2 ? x : builder_.Op("Reshape", {x, builder_.Ints({-1, hidden_})});
    CheckTensor(*fc2_, /*bias=*/false);  // the width of gate and up is read from it
    Value* gate_up = Stack(fc1_, fc3_, /*bias=*/false);
    Value* down = Stack(fc2_, nullptr, false);
    Value* gate_up_bias = b1_ == nullptr ? nullptr : Stack(b1_, b3_, true);
    Value* down_bias = b2_ == nullptr ? nullptr : Stack(b2_, nullptr, true);
    const auto [ids, weights] = Route();
    std::vector<Value*> inputs = {rows, ids, weights, gate_up, down};
    if (gate_up_bias != nullptr || down_bias != nullptr) inputs.push_back(gate_up_bias);
    if (down_bias != nullptr) inputs.push_back(down_bias);
    Value* y = builder_.Op("Experts", inputs, attributes_);
    if (x->shape.size() != 2) y = builder_.Op("Reshape", {y, builder_.Op("Shape", {x})});
    graph_.ReplaceUses(node_.out(0), y);
  }

 private:
  std::string Name() const { return StrCat(NameOf(node_), ": "); }
  [[noreturn]] void Refuse(const std::string& why) const {
    throw Error(ErrorCode::kUnsupportedOp, Name() + why);
  }

  void ReadWeights() {
    if (node_.op() == "MoE") {
      fc1_ = node_.in(2), b1_ = node_.in(3), fc2_ = node_.in(4), b2_ = node_.in(5),
      fc3_ = node_.in(6), b3_ = node_.in(7);
      WEIR_CHECK(fc2_ != nullptr, ErrorCode::kInvalidModel, Name(),
                 "input 4 (fc2 weights) is missing");
      return;
    }
    const Attributes& a = node_.attributes;
    const std::string kind = a.String("quant_type", "int");
    if (kind != "int")
      Refuse(StrCat("quantisation '", kind, "' is not known; known is int (4 and 8 bits)"));
    const int64_t prepacked = a.Int("weights_prepacked", 0);
    if (prepacked != 0) {
      Refuse(StrCat("weights_prepacked ", prepacked,
                    " is the private layout of one execution provider; export with "
                    "qmoe_weights_prepacked=0"));
    }
    for (size_t i = 15; i <= 20; ++i) {
      if (node_.in(i) != nullptr)
        Refuse(StrCat("input ", i, " (a global or activation scale) is not known"));
    }
    fc1_ = Read(2, 11), b1_ = node_.in(4), fc2_ = Read(5, 12), b2_ = node_.in(7),
    fc3_ = Read(8, 13), b3_ = node_.in(10);
    WEIR_CHECK(fc1_ != nullptr && fc2_ != nullptr, ErrorCode::kInvalidModel, Name(),
               "expert weights are missing");
    selected_scores_ = node_.in(14);
  }

  // The quantised weights at input `at` with scales after them and zero points at `zero_points`.
  Value* Read(size_t at, size_t zero_points) {
    if (node_.in(at) == nullptr) return nullptr;
    const Value* packed = node_.in(at);
    WEIR_CHECK(packed->has_shape && packed->shape.size() == 3 && IsConcrete(packed->shape) &&
                   node_.in(at + 1) != nullptr,
               ErrorCode::kInvalidModel, Name(), "input ", at,
               " must be packed weights [E, rows, bytes] with scales");
    QuantizedTensor tensor;
    tensor.packed = node_.in(at);
    tensor.scales = node_.in(at + 1);
    tensor.zero_points = node_.in(zero_points);
    const char* own_bits = at == 2 ? "fc1_expert_weight_bits" : at == 5 ? "fc2_expert_weight_bits" : "fc3_expert_weight_bits";
    tensor.bits = node_.attributes.Int(own_bits, node_.attributes.Int("expert_weight_bits", 4));
    tensor.block_size = node_.attributes.Int("block_size", 0);
    tensor.rows = {packed->shape[0].Constant(), packed->shape[1].Constant()};
    tensor.columns = PackedColumns(packed->shape[2].Constant(), tensor.bits, node_);
    return Dequantized(graph_, tensor, node_);
  }

  // Which activation, and how gate and up share fc1 (and fc3).
  void ReadActivation() {
    const Attributes& a = node_.attributes;
    const std::string type = a.String("activation_type", "relu");
    const int64_t fusion = a.Int("swiglu_fusion", 0);
    if (type == "swiglu") {
      const double alpha = a.Float("activation_alpha", 1), beta = a.Float("activation_beta", 0);
      if (a.Int("swiglu_limit_after_activation", 0) != 0)
        Refuse("swiglu_limit_after_activation clamps what the activation gives, not what it gets; that is not known");
      if (alpha != 1) attributes_.Set("alpha", alpha);
      if (beta != 0) attributes_.Set("beta", beta);
      if (a.Has("swiglu_limit")) {
        attributes_.Set("limit", a.Float("swiglu_limit", 0));
      } else {
        NoticeOnce(graph_,
                   "a swiglu expert node has no swiglu_limit, so gate and up are not clamped, as "
                   "the node says; "
                   "the model it was made from may clamp (gpt-oss: 7)");
      }
      if (fc3_ == nullptr && fusion == 0)
        Refuse("swiglu with swiglu_fusion 0 needs the up weights in fc3");
      if (fc3_ != nullptr && fusion != 0)
        Refuse(StrCat("swiglu_fusion ", fusion, " with fc3 is contradictory"));
      if (fusion < 0 || fusion > 2) Refuse(StrCat("swiglu_fusion ", fusion, " is not known"));
      interleaved_ = fusion == 1;
      return;
    }
    if (type != "silu" && type != "gelu" && type != "relu") {
      Refuse(
          StrCat("activation_type '", type, "' is not known; known are swiglu, silu, gelu, relu"));
    }
    if (fc3_ == nullptr) {
      Refuse(StrCat("activation_type '", type,
                    "' without fc3 is an expert without a gate, which no known model has; "
                    "a fused gate needs activation_type swiglu"));
    }
    attributes_.Set("activation", type == "silu" ? std::string("swiglu") : type);
    if (type == "silu") attributes_.Erase("activation");
  }

  void CheckTensor(const Value& tensor, bool bias) const {
    WEIR_CHECK(tensor.has_shape && tensor.shape.size() == (bias ? 2u : 3u) && IsConcrete(tensor.shape) &&
                   tensor.parameter != nullptr,
               ErrorCode::kUnsupportedOp, Name(), "'", tensor.name, "' must be an initializer of rank ",
               bias ? 2 : 3);
  }

  // [E, rows, columns] of a projection from its file tensor; older files store [E, columns, rows].
  Value* Stack(Value* first, Value* second, bool bias) {
    std::vector<ExpertTensors> projections;
    for (Value* tensor : {first, second}) {
      if (tensor == nullptr) continue;
      CheckTensor(*tensor, bias);
      const Dims dims = ToDims(tensor->shape);
      ExpertTensors projection{.tensors = {}, .bias = bias};
      const bool transposed = !bias && !IsRowMajor(tensor, dims);
      for (int64_t e = 0; e < dims[0]; ++e) {
        const ExprId id = pool_.Tensor(tensor, 0, e);
        projection.tensors.push_back(transposed ? pool_.Transposed(id) : id);
      }
      projections.push_back(std::move(projection));
    }
    const bool fused = first == fc1_ || first == b1_;
    std::string why;
    auto stack = PlanStack(pool_, projections, fused && interleaved_, why);
    if (!stack) Refuse(why);
    if (fused) CheckRows(stack->dims[1]);
    return MakeStack(graph_, std::move(*stack));
  }

  // fc1 and fc3 read H features, fc2 reads I of them.
  bool IsRowMajor(const Value* tensor, const Dims& dims) const {
    const bool down = tensor == fc2_;
    const bool in_last = down ? dims[1] == hidden_ : dims[2] == hidden_;
    const bool in_middle = down ? dims[2] == hidden_ : dims[1] == hidden_;
    if (!in_last && !in_middle) {
      Refuse(StrCat("'", tensor->name, "' ", ToString(dims), " has no axis of the hidden width ",
                    hidden_));
    }
    return in_last;
  }

  // gate and up together are twice as wide as what fc2 reads.
  void CheckRows(int64_t rows) const {
    const Dims dims = ToDims(fc2_->shape);
    const int64_t width = dims[1] == hidden_ ? dims[2] : dims[1];
    if (rows != 2 * width) {
      Refuse(StrCat("'", fc1_->name, "' gives ", rows, " rows, expected 2 * ", width,
                    " (gate and up of the width that '", fc2_->name, "' reads)"));
    }
  }

  std::pair<Value*, Value*> Route() {
    const Attributes& a = node_.attributes;
    if (a.Int("use_sparse_mixer", 0) != 0) {
      Refuse(
          "use_sparse_mixer picks experts by thresholds that depend on the provider; export the "
          "model with torch");
    }
    Value* logits = node_.in(1);
    if (logits->has_shape && logits->shape.size() != 2) {
      logits = builder_.Op("Reshape", {logits, builder_.Ints({-1, fc2_->shape[0].Constant()})});
    }
    NoticeOnce(graph_,
               "MoE routing: of equal scores the lowest expert index wins, as in ONNX TopK");
    const bool normalize = a.Int("normalize_routing_weights", 0) != 0;
    const Attributes last = {{"axis", int64_t{1}}};
    Value* k = builder_.Ints({a.Int("k", 1)});
    const auto top = [&](Value* scores) { return builder_.Ops("TopK", {scores, k}, 2, last); };
    if (selected_scores_ != nullptr) {
      Value* ids = top(logits)[1];
      Value* weights = builder_.Op("GatherElements", {selected_scores_, ids}, last);
      if (normalize) {
        weights =
            builder_.Op("Div", {weights, builder_.Op("ReduceSum", {weights, builder_.Ints({1})})});
      }
      return {ids, weights};
    }
    // Softmax over all, cut to k and normalised, is softmax over the k.
    const auto best = top(normalize ? logits : builder_.Op("Softmax", {logits}, last));
    return {best[1], normalize ? builder_.Op("Softmax", {best[0]}, last) : best[0]};
  }

  Graph& graph_;
  Node& node_;
  Builder builder_;
  ExprPool pool_;
  Value *fc1_ = nullptr, *b1_ = nullptr, *fc2_ = nullptr, *b2_ = nullptr, *fc3_ = nullptr,
        *b3_ = nullptr;
  Value* selected_scores_ =
      nullptr;  // QMoE input 14: scores that weigh, apart from those that select
  Attributes attributes_;
  bool interleaved_ = false;
  int64_t hidden_ = 0;
};

}  // namespace

std::string LowerMoe::doc() const {
  return "y = MoE(x, logits, fc1, b1?, fc2, b2?, fc3?, b3?)  ==>\n"
         "normalize_routing_weights:  s, ids = TopK(logits); w = Softmax(s);  else  w, ids = "
         "TopK(Softmax(logits))\n"
         "y = Experts(x, ids, w, gate_up, down, gate_up_bias?, down_bias?)\n"
         "QMoE likewise over dequantised weights; swiglu_fusion 1 is interleaved, 2 is gate rows "
         "first.";
}

bool LowerMoe::Run(Graph& graph, PassContext& context) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    const bool moe = node->op() == "MoE" || node->op() == "QMoE";
    if (moe && node->schema->domain == "com.microsoft") nodes.push_back(node.get());
  }
  for (Node* node : nodes) {
    MoeNode(graph, *node).Lower();
    context.Matched(*node);
  }
  if (!nodes.empty()) graph.RemoveDeadNodes();
  return !nodes.empty();
}

}  // namespace weir
