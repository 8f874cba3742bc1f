// ai.onnx Attention and RotaryEmbedding as files hold them; passes rewrite both to ai.weir
// operators.
#include "kernels/common/reference_kernel.h"
#include "kernels/elementwise/infer.h"
#include "kernels/onnx_attention/reference.h"

namespace weir {

HeadView ViewHeads(const Dims& dims, int64_t heads, const char* what) {
  if (dims.size() == 4) return {dims[0], dims[1], dims[2], dims[3], false};
  WEIR_CHECK(dims.size() == 3, ErrorCode::kInvalidShape, what, " has shape ", ToString(dims),
             ", expected 3 or 4 axes");
  WEIR_CHECK(heads > 0 && dims[2] % heads == 0, ErrorCode::kInvalidShape, what, " ", ToString(dims),
             " does not split into ", heads,
             " heads; a 3-D input needs the head counts as attributes");
  return {dims[0], heads, dims[1], dims[2] / heads, true};
}

namespace {

// Symbolic twin of HeadView: [batch, heads, length, width] of input i, or nullopt.
std::optional<Shape> Heads(InferContext& c, size_t i, const char* attribute) {
  if (!c.HasShape(i)) return std::nullopt;
  const Shape& shape = c.shape(i);
  if (shape.size() == 4) return shape;
  if (shape.size() != 3)
    c.Fail(StrCat("input ", i, " has shape ", ToString(shape), ", expected 3 or 4 axes"));
  const int64_t heads = c.node.attributes.Int(attribute, 0);
  if (heads <= 0) c.Fail(StrCat("3-D inputs need the attribute ", attribute));
  return Shape{shape[0], heads, shape[1], DivExact(shape[2], heads)};
}

void InferAttention(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  for (size_t o = 0; o < c.node.outputs.size(); ++o) c.SetDType(o, dtype);
  const auto q = Heads(c, 0, "q_num_heads"), k = Heads(c, 1, "kv_num_heads"),
             v = Heads(c, 2, "kv_num_heads");
  if (!q || !v) return;
  const bool packed = c.shape(0).size() == 3;
  c.SetOutput(0, dtype,
              packed ? Shape{(*q)[0], (*q)[2], (*q)[1] * (*v)[3]}
                     : Shape{(*q)[0], (*q)[1], (*q)[2], (*v)[3]});
  for (size_t o = 1; o <= 2; ++o) {
    const auto& now = o == 1 ? k : v;
    if (!now) continue;
    Shape present = *now;
    if (c.in(o + 3) != nullptr) {
      present[2] = c.HasShape(o + 3) && c.shape(o + 3).size() == 4 ? present[2] + c.shape(o + 3)[2]
                                                                   : Dim::Unknown();
    }
    c.SetOutput(o, dtype, present);
  }
}

void InferRotary(InferContext& c) {
  InferUnary(c);
  if (c.HasShape(0)) Heads(c, 0, "num_heads");
}

CaseInput Mask(Dims dims, std::vector<int64_t> bits) {
  return {.kind = CaseInput::Kind::kInts,
          .dims = std::move(dims),
          .ints = std::move(bits),
          .dtype = DType::kBool};
}

std::vector<OpCase> AttentionCases() {
  const Attributes causal{{"is_causal", int64_t{1}}};
  return {{"onnx_plain", {{.dims = {2, 3, 5, 8}}, {.dims = {2, 3, 7, 8}}, {.dims = {2, 3, 7, 6}}}},
          {"onnx_causal_grouped",
           {{.dims = {1, 4, 5, 8}}, {.dims = {1, 2, 5, 8}}, {.dims = {1, 2, 5, 8}}},
           causal},
          {"onnx_packed",
           {{.dims = {2, 5, 12}}, {.dims = {2, 5, 6}}, {.dims = {2, 5, 4}}},
           {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"scale", 0.3}}},
          {"onnx_bool_mask",
           {{.dims = {1, 2, 2, 4}},
            {.dims = {1, 2, 3, 4}},
            {.dims = {1, 2, 3, 4}},
            Mask({2, 3}, {1, 0, 1, 0, 0, 0})}},
          {"onnx_softcap",
           {{.dims = {1, 2, 3, 4}, .scale = 3},
            {.dims = {1, 2, 3, 4}, .scale = 3},
            {.dims = {1, 2, 3, 4}},
            {.dims = {1, 1, 3, 3}}},
           {{"softcap", 2.0}, {"is_causal", int64_t{1}}}},
          {"onnx_past",
           {{.dims = {1, 2, 2, 4}},
            {.dims = {1, 2, 2, 4}},
            {.dims = {1, 2, 2, 4}},
            {.kind = CaseInput::Kind::kAbsent},
            {.dims = {1, 2, 3, 4}},
            {.dims = {1, 2, 3, 4}}},
           causal,
           3}};
}

std::vector<OpCase> RotaryCases() {
  return {{"halves", {{.dims = {2, 3, 5, 8}}, {.dims = {2, 5, 4}}, {.dims = {2, 5, 4}}}},
          {"pairs_partial",
           {{.dims = {1, 2, 3, 10}}, {.dims = {1, 3, 3}}, {.dims = {1, 3, 3}}},
           {{"interleaved", int64_t{1}}, {"rotary_embedding_dim", int64_t{6}}}},
          {"positions",
           {{.dims = {2, 2, 12}},
            {.dims = {7, 2}},
            {.dims = {7, 2}},
            {.kind = CaseInput::Kind::kInts, .dims = {2, 2}, .ints = {6, 0, 3, 3}}},
           {{"num_heads", int64_t{3}}}}};
}

}  // namespace

const OpSchema& OnnxAttentionSchema() {
  static const OpSchema schema{.name = "Attention",
                               .doc =
                                   "y = softmax(softcap(scale q k^T) + mask) v; q [B,Hq,S,D], k, v "
                                   "[B,Hk,T,.] or 3-D with heads packed\n"
                                   "in the last axis (q_num_heads, kv_num_heads). Inputs Q, K, V, "
                                   "attn_mask? (bool keep, or additive),\n"
                                   "past_key?, past_value?; attributes is_causal, scale "
                                   "(1/sqrt(D)), softcap, left/right_window_size.\n"
                                   "Fully masked rows are 0. Rewritten to ai.weir::Attention for "
                                   "training.  Source: ONNX Attention-25",
                               .min_inputs = 3,
                               .max_inputs = 7,
                               .max_outputs = 4,
                               .infer = InferAttention,
                               WEIR_REFERENCE(OnnxAttentionReference),
                               .cases = AttentionCases};
  return schema;
}
WEIR_REFERENCE_CPU_KERNEL(OnnxAttention)

const OpSchema& OnnxRotaryEmbeddingSchema() {
  static const OpSchema schema{.name = "RotaryEmbedding",
                               .doc =
                                   "Rotates the first rotary_embedding_dim (default all) channels "
                                   "of every head: y1 = x1 cos - x2 sin,\n"
                                   "y2 = x2 cos + x1 sin. X [B,h,S,D] or [B,S,h*D] with num_heads; "
                                   "caches [B,S,d/2], or [P,d/2] with\n"
                                   "position_ids [B,S]; interleaved pairs (2i, 2i+1), else (i, "
                                   "i+d/2).  Source: ONNX RotaryEmbedding-23",
                               .min_inputs = 3,
                               .max_inputs = 4,
                               .infer = InferRotary,
                               WEIR_REFERENCE(OnnxRotaryEmbeddingReference),
                               .cases = RotaryCases};
  return schema;
}
WEIR_REFERENCE_CPU_KERNEL(OnnxRotaryEmbedding)

}  // namespace weir
