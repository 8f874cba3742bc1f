// com.microsoft operators: known to the importer, rewritten by passes, never run.
#include "backend/kernel.h"
#include "kernels/elementwise/infer.h"

namespace weir {
namespace {

struct Arity {
  int min_inputs, max_inputs, min_outputs, max_outputs;
};

OpSchema ContribSchema(const char* name, Arity arity, void (*infer)(InferContext&),
                       const char* doc) {
  OpSchema schema;
  schema.name = name;
  schema.domain = "com.microsoft";
  schema.doc = StrCat(
      doc, "\nNo kernel: graph passes rewrite it.  Source: ONNX Runtime com.microsoft::", name);
  schema.min_inputs = arity.min_inputs;
  schema.max_inputs = arity.max_inputs;
  schema.min_outputs = arity.min_outputs;
  schema.max_outputs = arity.max_outputs;
  schema.infer = infer;
  return schema;
}

// Skip layer norms: outputs 0 (normalised) and 3 (x + skip + bias) look like x.
void InferSkipNorm(InferContext& c) {
  InferUnary(c);
  if (c.node.out(3) == nullptr) return;
  c.SetDType(3, c.in(0)->dtype);
  if (c.HasShape(0)) c.SetOutput(3, c.in(0)->dtype, c.shape(0));
}

// Output 0 is the attention result [B,S,hidden of q]; caches keep their input's dtype.
void InferGroupQueryAttention(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  for (size_t o = 0; o < c.node.outputs.size(); ++o) c.SetDType(o, dtype);
  constexpr int64_t kMostHeads = 1 << 20;
  const int64_t heads = c.node.attributes.Int("num_heads"),
                kv = c.node.attributes.Int("kv_num_heads");
  if (heads < 1 || heads > kMostHeads || kv < 1 || kv > kMostHeads)
    c.Fail(StrCat("num_heads ", heads, " and kv_num_heads ", kv, " must be 1 .. ", kMostHeads));
  if (!c.HasShape(0) || c.shape(0).size() != 3) return;
  Shape y = c.shape(0);
  if (c.in(1) == nullptr) {  // q, k, v packed along the last axis
    y.back() = DivExact(y.back() * Dim(heads), heads + 2 * kv);
  }
  c.SetOutput(0, dtype, y);
}

void InferMultiHeadAttention(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  for (size_t o = 0; o < c.node.outputs.size(); ++o) c.SetDType(o, dtype);
  if (!c.HasShape(0) || c.shape(0).size() != 3) return;
  Shape y = c.shape(0);
  if (c.in(2) != nullptr) {
    if (!c.HasShape(2)) return;
    const Shape& v = c.shape(2);
    y.back() = v.size() == 3 ? v.back() : v.size() == 4 ? v[1] * v[3] : Dim::Unknown();
  }
  c.SetOutput(0, dtype, y);
}

// y[..., N] from the attributes K and N.
void InferMatMulNBits(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  const int64_t n = c.node.attributes.Int("N"), k = c.node.attributes.Int("K");
  if (!c.HasShape(0)) return;
  Shape y = c.shape(0);
  if (y.empty()) c.Fail("A must have at least one axis");
  if (y.back().IsConstant() && !(y.back() == Dim(k))) {
    c.Fail(StrCat("A ", ToString(y), " does not end in K = ", k));
  }
  y.back() = n;
  c.SetOutput(0, c.in(0)->dtype, y);
}

// MatMul of (optionally transposed) operands; batch transposes leave the shape open.
void InferFusedMatMul(InferContext& c) {
  c.SetDType(0, CommonDType(c));
  const Attributes& a = c.node.attributes;
  if (a.Int("transBatchA", 0) != 0 || a.Int("transBatchB", 0) != 0) return;
  if (!c.HasShape(0) || !c.HasShape(1) || c.shape(0).size() < 2 || c.shape(1).size() < 2) return;
  Shape x = c.shape(0), w = c.shape(1);
  if (a.Int("transA", 0) != 0) std::swap(x[x.size() - 1], x[x.size() - 2]);
  if (a.Int("transB", 0) != 0) std::swap(w[w.size() - 1], w[w.size() - 2]);
  const Dim inner = x.back(), other = w[w.size() - 2];
  if (inner.IsConstant() && other.IsConstant() && !(inner == other)) {
    c.Fail(StrCat("inner dimensions ", ToString(inner), " and ", ToString(other), " differ"));
  }
  auto y = Broadcast(Shape(x.begin(), x.end() - 2), Shape(w.begin(), w.end() - 2));
  if (!y) c.Fail(StrCat("batch axes of ", ToString(x), " and ", ToString(w), " do not broadcast"));
  y->push_back(x[x.size() - 2]);
  y->push_back(w.back());
  c.SetOutput(0, c.node.out(0)->dtype, *y);
}

// Gathers quantised rows; the result has the dtype of the scales.
void InferGatherBlockQuantized(InferContext& c) {
  const DType dtype = c.in(2)->dtype;
  c.SetDType(0, dtype);
  if (!c.HasShape(0) || !c.HasShape(1) || c.node.attributes.Int("gather_axis", 0) != 0) return;
  Shape y = c.shape(1);
  const Shape& data = c.shape(0);
  for (size_t k = 1; k < data.size(); ++k) y.push_back(data[k]);
  const int64_t bits = c.node.attributes.Int("bits", 4);
  if (c.in(0)->dtype == DType::kUInt8 && bits == 4 && data.size() > 1) y.back() = y.back() * Dim(2);
  c.SetOutput(0, dtype, y);
}

}  // namespace

// A null launch: planning a graph that still holds the op names it as missing.
#define WEIR_CONTRIB(Function, name, arity, infer, doc)                          \
  const OpSchema& Function##Schema() {                                           \
    static const OpSchema schema = ContribSchema(name, Arity arity, infer, doc); \
    return schema;                                                               \
  }                                                                              \
  const Kernel& Function##CpuKernel() {                                          \
    static const Kernel kernel;                                                  \
    return kernel;                                                               \
  }
#define WEIR_ARITY(...) \
  { __VA_ARGS__ }

WEIR_CONTRIB(MsMoE, "MoE", WEIR_ARITY(3, 8, 1, 1), InferUnary,
             "(x [.., H], router logits [N, E], fc1 [E, I or 2I, H], fc1_bias?, fc2 [E, H, I], "
             "fc2_bias?, fc3?,\n"
             "fc3_bias?) -> y like x; y = sum over top k of w_e * fc2_e(act(fc1_e x)).")
WEIR_CONTRIB(MsQMoE, "QMoE", WEIR_ARITY(4, 21, 1, 1), InferUnary,
             "MoE over block-quantised expert weights: (x, router, fc1 u8, scales, bias?, fc2 u8, "
             "scales, ...).")
WEIR_CONTRIB(
    MsGroupQueryAttention, "GroupQueryAttention", WEIR_ARITY(1, 16, 1, 4), InferGroupQueryAttention,
    "(q or packed qkv [B, S, .], k?, v?, past_key?, past_value?, seqlens_k, total_length, cos?, "
    "sin?,\n"
    "position_ids?, bias?, sinks?, ...) -> y [B, S, heads * D], present_key?, present_value?.")
WEIR_CONTRIB(MsMultiHeadAttention, "MultiHeadAttention", WEIR_ARITY(1, 10, 1, 4),
             InferMultiHeadAttention,
             "(q [B, S, .], k?, v?, bias?, key_padding_mask?, attention_bias?, past_key?, "
             "past_value?, ...) -> y.")
WEIR_CONTRIB(MsRotaryEmbedding, "RotaryEmbedding", WEIR_ARITY(4, 4, 1, 1), InferUnary,
             "(x [B, S, H] or [B, heads, S, D], position_ids, cos cache, sin cache) -> y like x; "
             "attributes\n"
             "interleaved, num_heads, rotary_embedding_dim, scale.")
WEIR_CONTRIB(
    MsSkipSimplifiedLayerNormalization, "SkipSimplifiedLayerNormalization", WEIR_ARITY(3, 4, 1, 4),
    InferSkipNorm,
    "(x, skip, gamma, bias?) -> y = rms(x + skip + bias) * gamma; output 3: x + skip + bias.")
WEIR_CONTRIB(MsSkipLayerNormalization, "SkipLayerNormalization", WEIR_ARITY(3, 5, 1, 4),
             InferSkipNorm,
             "(x, skip, gamma, beta?, bias?) -> y = norm(x + skip + bias) * gamma + beta; output "
             "3: the sum.")
WEIR_CONTRIB(MsSimplifiedLayerNormalization, "SimplifiedLayerNormalization", WEIR_ARITY(2, 2, 1, 2),
             InferUnary,
             "(x, gamma) -> x / sqrt(mean(x^2) + epsilon) * gamma over the axes from `axis` on.")
WEIR_CONTRIB(MsMatMulNBits, "MatMulNBits", WEIR_ARITY(3, 6, 1, 1), InferMatMulNBits,
             "(A [.., K], B u8 [N, blocks, bytes], scales, zero_points?, g_idx?, bias?) -> A * "
             "dequantised B^T.")
WEIR_CONTRIB(MsGatedAdd, "GatedAdd", WEIR_ARITY(3, 3, 1, 1), InferUnary,
             "(routed, shared, gate) -> routed + shared * gate.")
WEIR_CONTRIB(MsFastGelu, "FastGelu", WEIR_ARITY(1, 2, 1, 1), InferUnary,
             "(x, bias?) -> gelu_tanh(x + bias).")
WEIR_CONTRIB(MsQuickGelu, "QuickGelu", WEIR_ARITY(1, 1, 1, 1), InferUnary,
             "x * sigmoid(alpha * x), alpha 1.702.")
WEIR_CONTRIB(MsBiasGelu, "BiasGelu", WEIR_ARITY(2, 2, 1, 1), InferUnary,
             "(x, bias) -> gelu(x + bias), erf form.")
WEIR_CONTRIB(MsFusedMatMul, "FusedMatMul", WEIR_ARITY(2, 2, 1, 1), InferFusedMatMul,
             "alpha * op(A) * op(B) with attributes transA, transB, transBatchA, transBatchB.")
WEIR_CONTRIB(MsGatherBlockQuantized, "GatherBlockQuantized", WEIR_ARITY(3, 4, 1, 1),
             InferGatherBlockQuantized,
             "(data, indices, scales, zero_points?) -> rows of the dequantised data; bits 4, "
             "block_size 128.")
#undef WEIR_ARITY
#undef WEIR_CONTRIB

}  // namespace weir
