#pragma once
#include "graph_passes/pass.h"

namespace weir {

// com.microsoft operators (ONNX Runtime GenAI models and optimised graphs) become ai.onnx and
// ai.weir ones. Each pass owns one group; what cannot be said exactly is an UnsupportedOp error in
// words.

// Skip norms, SimplifiedLayerNormalization, GatedAdd, gelus, FusedMatMul, RotaryEmbedding.
class LowerContribMath final : public Pass {
 public:
  std::string name() const override { return "lower_contrib_math"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

// MatMulNBits, GatherBlockQuantized and DequantizeLinear of stored weights: float parameters.
class LowerQuantized final : public Pass {
 public:
  std::string name() const override { return "lower_quantized"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

// MoE and QMoE: router in ai.onnx ops and Experts.
class LowerMoe final : public Pass {
 public:
  std::string name() const override { return "lower_moe"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

// GroupQueryAttention and MultiHeadAttention without a past.
class LowerContribAttention final : public Pass {
 public:
  std::string name() const override { return "lower_contrib_attention"; }
  std::string doc() const override;
  bool Run(Graph& graph, PassContext& context) override;
};

// Runs all of the above when the graph has com.microsoft nodes. Infers shapes first.
void LowerContrib(Graph& graph, PassManager& passes);

}  // namespace weir
