#include "graph/op_schema.h"
#include "kernels/experts/cases.h"
#include "kernels/experts/schema.h"
#include "kernels/pipelined_llep/reference.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {
namespace {

void InferPipelinedLlep(InferContext& c) {
  InferExperts(c);
  if (!c.HasShape(0) || !c.HasShape(1) || !c.HasShape(3)) return;
  const auto constant = [](const Dim& dim, int64_t otherwise) {
    return dim.IsConstant() ? dim.Constant() : otherwise;
  };
  const Dim &tokens = c.shape(0)[0], &top_k = c.shape(1)[1], &held = c.shape(3)[0];
  const LlepKnobs knobs = KnobsOf(c.node.attributes, constant(tokens, 0), constant(top_k, 1));
  knobs.Validate();  // C7
  const int64_t least = knobs.experts / knobs.ranks, most = DivCeil(knobs.experts, knobs.ranks);
  const bool whole = constant(held, knobs.experts) == knobs.experts;  // until shard_experts has run
  if (!whole && (held.Constant() < least || held.Constant() > most)) {
    c.Fail(StrCat("C8: a rank's share of ", knobs.experts, " experts over ", knobs.ranks,
                  " ranks is ", least, " to ", most, "; gate_up is ", ToString(c.shape(3))));
  }
  if (constant(tokens, 0) > knobs.max_tokens) {
    c.Fail(StrCat("C9: ", constant(tokens, 0), " tokens exceed max_tokens ", knobs.max_tokens));
  }
  if (c.node.outputs.size() > 1) {
    c.SetOutput(1, DType::kInt64, ToShape({knobs.ranks, knobs.leaves, knobs.experts}));
  }
}

std::vector<OpCase> PipelinedLlepCases() {
  std::vector<OpCase> cases;
  int64_t chunk_tokens = 0;
  for (OpCase& op_case : ExpertsCases()) {
    op_case.attributes.Set("experts", op_case.in[3].dims[0]);
    op_case.attributes.Set("chunk_tokens", chunk_tokens);
    op_case.outputs = 2;
    chunk_tokens = (chunk_tokens + 3) % 11;
    cases.push_back(std::move(op_case));
  }
  return cases;
}

}  // namespace

const OpSchema& PipelinedLlepSchema() {
  static const OpSchema schema{
      .name = "PipelinedLlep",
      .domain = "ai.weir",
      .doc =
          R"(Experts, spread over the ranks of `group` and streamed in chunks of tokens:
y_n = sum_k weights[n,k] * (down[e] a + down_bias[e]), e = ids[n,k], as in Experts, to the bit.
x [N,H], ids int64 [N,K] of all E experts, weights [N,K], this rank's share of the experts:
gate_up [E',2I,H], down [E',H,I], gate_up_bias? [E',2I], down_bias? [E',H]; y [N,H], counts int64
[E_p,leaves,E]: routes of each rank, saved for backward. N may differ over ranks and be 0.
Attributes: Experts' own; experts (E), expert_parallel (E_p), group; leaves (16), unit_rows (4096):
part of the numerical definition; max_tokens (N_max; this rank's N), chunk_tokens (c; 0 = one chunk),
max_chunks (0 = no limit), llep_lambda (infinity = never balance), llep_alpha (1.1), min_rows (1),
max_foreign (0): see kernels/llep/plan.h. None of the latter changes a bit.
Per chunk: rows to the ranks that compute them, grouped products, un-reduced rows home, folded over
slots 0..K-1 in float32. Chunk i+1 arrives and chunk i-1 goes home while chunk i computes. Weights of
borrowed experts travel once. Every rank of the group joins every exchange.
Workspace is independent of routing: K*c_eff + rows rows of width H for rows = RowBound, twice when
there are several chunks, plus max_foreign experts; on one rank K*c_eff rows.
On GPUs the biases of all experts are gathered, down_bias is added at home, and rows pass through the
experts in batches of about 16,384: bits of y and dx are those of Experts there too.
C1 to C6 as Experts. C7 attributes in range. C8 the share. C9 N <= max_tokens.
Cost: 6*N*K*H*I flop, 8*N*K*H bytes each way.  Source: arXiv:2609.14306; arXiv:2601.17111.)",
      .min_inputs = 5,
      .max_inputs = 7,
      .min_outputs = 2,
      .max_outputs = 2,
      .infer = InferPipelinedLlep,
      WEIR_REFERENCE(PipelinedLlepReference),
      .gradient =
          [](GradientContext& g) { EmitExpertsGradient(g, "PipelinedLlepGradient", g.out(1)); },
      .cost = [](const Node& n) { return ExpertsCost(n, 1); },
      .cases = PipelinedLlepCases,
      .nondifferentiable_inputs = {1}};
  return schema;
}

const OpSchema& PipelinedLlepGradientSchema() {
  static const OpSchema schema{
      .name = "PipelinedLlepGradient",
      .domain = "ai.weir",
      .doc =
          R"(ExpertsGradient for PipelinedLlep: the same sums over all ranks of `group`.
inputs as ExpertsGradient, then counts (input 12) of the forward pass, from which the same plan
follows: nothing is routed or planned anew. Outputs as ExpertsGradient, for this rank's experts.
An expert's routes are summed in canonical order (leaf, source rank, token, slot), in units cut at
leaf edges and every unit_rows rows, each from zero in float32. A helper returns its units' partials,
one a round; the owner folds all units in canonical order into the accumulator (+=). dx rows and the
gradients of router weights go home un-reduced; dx folds slots 0..K-1. Recomputes the forward pass
inside the chunk. Deterministic: no attribute but leaves, unit_rows and expert_parallel changes a bit.
Workspace: K*c_eff + rows rows of width 2H+1, twice when there are several chunks, max_foreign
experts, two partials of one expert.
Cost: 8/3 forward.  Source: derivative of PipelinedLlep; arXiv:2601.17111.)",
      .min_inputs = 13,
      .max_inputs = 13,
      .min_outputs = 2,
      .max_outputs = 6,
      .infer = InferExpertsGradient,
      WEIR_REFERENCE(ExpertsGradientReference),
      .cost = [](const Node& n) { return ExpertsCost(n, 8.0 / 3); },
      .aliases = {{2, 8}, {3, 9}, {4, 10}, {5, 11}}};
  return schema;
}

}  // namespace weir
