#include "graph_passes/fuse_rotary.h"

#include <map>
#include <optional>

#include "graph/error.h"
#include "graph_passes/match.h"
#include "graph_passes/match_rotation.h"
#include "graph_passes/recognize_rotary.h"
#include "graph_passes/shape_tensor.h"

namespace weir {
namespace {

using Perm = std::vector<int64_t>;
const Perm kSwapHeads = {0, 2, 1, 3};

std::optional<int64_t> SequenceAxis(const Value* x) {
  for (size_t axis = 0; x->has_shape && axis < x->shape.size(); ++axis) {
    if (x->shape[axis] == Dim::Sequence()) return static_cast<int64_t>(axis);
  }
  return std::nullopt;
}

// Whether `table` [.., S, .., c] lines its positions up with axis `axis` of x and repeats over the
// rest.
bool LinesUp(const Value* table, const Value* x, int64_t axis) {
  const auto own = SequenceAxis(table);
  const auto shift = static_cast<int64_t>(x->shape.size() - table->shape.size());
  if (!own || table->shape.size() > x->shape.size() || *own + shift != axis) return false;
  for (size_t a = 0; a + 1 < table->shape.size(); ++a) {
    const Dim& dim = table->shape[a];
    const bool batch = a == 0 && shift == 0 && dim == Dim::Batch();
    if (static_cast<int64_t>(a) != *own && !batch && !(dim == Dim(1))) return false;
  }
  return true;
}

// Rotary of x in any layout that has the sequence at axis 1 or 2 of four, or at axis 1 of three.
Value* EmitRotary(Builder& builder, Value* x, const RotaryTables& tables, bool input_interleaved,
                  bool output_interleaved) {
  Attributes attributes;
  if (input_interleaved) attributes.Set("input_interleaved", int64_t{1});
  if (output_interleaved) attributes.Set("output_interleaved", int64_t{1});
  const Shape shape = x->shape;
  const bool flat = shape.size() == 3, heads_first = !flat && shape[2] == Dim::Sequence();
  if (flat) x = ReshapeTo(builder, x, {shape[0], shape[1], 1, shape[2]});
  if (heads_first) x = TransposeBy(builder, x, kSwapHeads);
  Value* y = builder.Op("Rotary", {x, tables.cos, tables.sin}, attributes);
  if (heads_first) y = TransposeBy(builder, y, kSwapHeads);
  return flat ? ReshapeTo(builder, y, shape) : y;
}

// x0 when x is x0 with its channels taken pairwise apart: Reshape(Transpose(Reshape(x0, [.., d/2,
// 2])))
Value* BeforeDeinterleave(Value* x) {
  const Node* flat = Made(x, "Reshape");
  const Node* transpose = flat ? Made(flat->in(0), "Transpose") : nullptr;
  const Node* pairs = transpose ? Made(transpose->in(0), "Reshape") : nullptr;
  if (!pairs || !pairs->in(0)->has_shape || !Same(pairs->in(0)->shape, x->shape)) return nullptr;
  const Shape& shape = pairs->out()->shape;
  const size_t rank = x->shape.size();
  if (shape.size() != rank + 1 || !(shape[rank] == Dim(2))) return nullptr;
  const Perm perm = transpose->attributes.Ints("perm");
  for (size_t a = 0; a + 1 < rank; ++a) {
    if (perm.size() != rank + 1 || perm[a] != static_cast<int64_t>(a) || !(shape[a] == x->shape[a]))
      return nullptr;
  }
  const bool swaps =
      perm[rank - 1] == static_cast<int64_t>(rank) && perm[rank] == static_cast<int64_t>(rank) - 1;
  return swaps ? pairs->in(0) : nullptr;
}

class Fuser {
 public:
  Fuser(Graph& graph, PassContext& context) : graph_(graph), context_(context), constants_(graph) {}

  bool FuseArithmetic(Node& node) {
    Rotation rotation = MatchRotateHalf(node);
    if (!rotation) rotation = MatchSplitRotation(node);
    if (!rotation) return false;
    const auto pair = Recognize(node, rotation.x, rotation.cos, rotation.sin);
    if (!pair) return false;
    const auto half = static_cast<int64_t>(pair->inv_freq.size());
    const bool width_fits =
        rotation.x->shape.back() == Dim(2 * half) &&
        pair->width == (rotation.full_tables ? 2 * half : half) &&
        (!rotation.full_tables || pair->interleaved == rotation.output_interleaved || half == 1);
    if (!width_fits) return Miss(node, "the rotary operands do not fit the rotated channels");
    Value* x = rotation.x;
    if (Value* before = rotation.input_interleaved ? nullptr : BeforeDeinterleave(x)) {
      x = before;
      rotation.input_interleaved = true;
    }
    Builder builder = At(graph_, node);
    Value* y = EmitRotary(builder, x, MakeTables(graph_, *pair), rotation.input_interleaved,
                          rotation.output_interleaved);
    graph_.ReplaceUses(node.out(), y);
    return true;
  }

  // ai.onnx RotaryEmbedding(x, cos, sin, ids?) and com.microsoft RotaryEmbedding(x, ids, cos, sin)
  bool FuseOp(Node& node) {
    const bool microsoft = node.schema->domain == "com.microsoft";
    Value *x = node.in(0), *ids = node.in(microsoft ? 1 : 3);
    Value *cos = node.in(microsoft ? 2 : 1), *sin = node.in(microsoft ? 3 : 2);
    const bool interleaved = node.attributes.Int("interleaved", 0) != 0;
    const int64_t heads = node.attributes.Int("num_heads", 0);
    if (!x->has_shape || !x->shape.back().IsConstant()) return Miss(node, "x has no known shape");
    if (node.attributes.Float("scale", 1.0) != 1.0) return Miss(node, "scale is not 1");
    const Shape shape = x->shape;
    Builder builder = At(graph_, node);
    if (shape.size() == 3) {
      const int64_t count = heads > 0 ? heads : 1;
      x = ReshapeTo(builder, x, {shape[0], shape[1], count, shape[2].Constant() / count});
    } else if (shape.size() != 4 || !(shape[2] == Dim::Sequence())) {
      return Miss(node, "x is not [batch,heads,sequence,channels]");
    }
    const auto tables =
        ids != nullptr ? FromCaches(node, ids, cos, sin) : FromOperands(node, x, cos, sin);
    if (!tables) return false;
    const int64_t width = node.attributes.Int("rotary_embedding_dim", 0);
    if (width > 0 && !(tables->cos->shape.back() == Dim(width / 2)))
      return Miss(node, "tables do not fit its width");
    Value* y = EmitRotary(builder, x, *tables, interleaved, interleaved);
    graph_.ReplaceUses(node.out(), ReshapeTo(builder, y, shape));
    return true;
  }

 private:
  bool Miss(const Node& node, const std::string& why) {
    context_.Missed(node, why);
    return false;
  }

  std::optional<RotaryPair> Recognize(const Node& node, const Value* x, const Value* cos,
                                      const Value* sin) {
    const auto axis = SequenceAxis(x);
    const size_t rank = x->shape.size();
    const bool layout =
        axis && ((rank == 4 && (*axis == 1 || *axis == 2)) || (rank == 3 && *axis == 1));
    if (!layout || !constants_.Has(cos) || !constants_.Has(sin))
      return std::nullopt;  // no rotary at all
    if (!LinesUp(cos, x, *axis) || !LinesUp(sin, x, *axis)) {
      Miss(node, "the rotary operands do not line up with the positions");
      return std::nullopt;
    }
    return Recognize(node, cos, sin);
  }

  // All layers share their tables: each pair is proved once.
  std::optional<RotaryPair> Recognize(const Node& node, const Value* cos, const Value* sin) {
    const auto [it, added] = pairs_.try_emplace({cos, sin});
    if (added) it->second.pair = RecognizeRotary(constants_, cos, sin, it->second.why);
    if (!it->second.pair) Miss(node, it->second.why);
    return it->second.pair;
  }

  std::optional<RotaryTables> FromOperands(const Node& node, const Value* x, const Value* cos,
                                           const Value* sin) {
    const bool fits = cos->has_shape && sin->has_shape && cos->shape.size() == 3 &&
                      cos->shape[1] == Dim::Sequence() && x->shape.size() == 4;
    const auto pair = fits ? Recognize(node, cos, sin) : std::nullopt;
    const bool half = pair && pair->width == static_cast<int64_t>(pair->inv_freq.size());
    if (!fits || (pair && !half))
      Miss(node, "cos and sin are not [batch,sequence,channels/2] tables");
    return half ? std::optional(MakeTables(graph_, *pair)) : std::nullopt;
  }

  // Baked caches read at positions 0 .. S-1.
  std::optional<RotaryTables> FromCaches(const Node& node, const Value* ids, Value* cos,
                                         Value* sin) {
    for (const int64_t sequence : {5, 9}) {
      Probe probe(constants_, 2, sequence);
      const Array<float>* positions = probe.Evaluate(ids);
      const bool offset =
          positions != nullptr && positions->elements() == 1 && positions->i[0] == 0;
      bool counting = positions != nullptr && positions->elements() % sequence == 0;
      for (int64_t i = 0; counting && i < positions->elements(); ++i) {
        counting = positions->i[static_cast<size_t>(i)] == i % sequence;
      }
      if (counting || offset) continue;
      Miss(node, "the position ids are not 0 .. sequence-1");
      return std::nullopt;
    }
    return TablesFromCaches(graph_, cos, sin);
  }

  struct Proof {
    std::optional<RotaryPair> pair;
    std::string why;
  };
  Graph& graph_;
  PassContext& context_;
  LaunchConstants constants_;
  std::map<std::pair<const Value*, const Value*>, Proof> pairs_;
};

}  // namespace

std::string FuseRotary::doc() const {
  return "Add(Mul(x, cos), Mul(Concat(Neg(x2), x1), sin)) ==> Rotary(x, cos', sin')\n"
         "Concat(x1*cos - x2*sin, x2*cos + x1*sin) ==> Rotary(x, cos', sin')\n"
         "  cos', sin' = RotaryTable<inv_freq, scale>(S)\n"
         "x1, x2 are halves or even and odd channels; RotaryEmbedding of both domains likewise. "
         "The tables are\n"
         "proved by evaluation (recognize_rotary.h).";
}

bool FuseRotary::Run(Graph& graph, PassContext& context) {
  Fuser fuser(graph, context);
  for (const auto& node : graph.nodes()) {
    if (node->out(0) == nullptr || (node->out(0)->uses.empty() && !graph.IsOutput(node->out(0))))
      continue;
    const bool fused =
        node->op() == "RotaryEmbedding" ? fuser.FuseOp(*node) : fuser.FuseArithmetic(*node);
    if (fused) context.Matched(*node);
  }
  graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
