#include <algorithm>

#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/attention/reference.h"
#include "kernels/common/dims.h"
#include "kernels/common/saved_output.h"

namespace weir {
namespace {

void CheckStarts(InferContext& c, size_t input) {
  const Value* starts = c.in(input);
  if (starts == nullptr) return;
  if (starts->dtype != DType::kInt64) c.Fail(StrCat("C7: starts are ", DTypeName(starts->dtype), ", expected int64"));
  if (c.node.attributes.Int("causal", 1) == 0) c.Fail("C7: starts need causal = 1");
  if (!c.HasShape(input)) return;
  const Shape &s = c.shape(input), &k = c.shape(1);
  if (s.size() != 2 || Differ(s[0], k[0]) || Differ(s[1], k[1])) {
    c.Fail(StrCat("C7: starts ", ToString(s), " must be [batch,sequence] of k ", ToString(k)));
  }
}

// The sequence of queries of which q holds a share.
Dim WholeSequence(InferContext& c, const Dim& queries) {
  const RowShare rows{c.node.attributes.Int("row_shares", 1), c.node.attributes.Int("row_share", 0)};
  if (rows.share < 0 || rows.share >= rows.shares) c.Fail(StrCat("C9: row_share ", rows.share, " of row_shares ", rows.shares));
  if (queries.IsConstant() && queries.Constant() % rows.runs() != 0) {
    c.Fail(StrCat("C9: ", queries.Constant(), " queries of a share are not two runs of equal length"));
  }
  return rows.shares * queries;
}

void InferAttention(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  c.SetDType(1, DType::kFloat32);
  const Attributes& a = c.node.attributes;
  if (a.Int("window", 0) < 0) c.Fail("C4: window must not be negative; 0 means none");
  if (a.Int("window", 0) > 0 && a.Int("causal", 1) == 0) c.Fail("C4: a window needs causal = 1");
  if (a.Float("softcap", 0) < 0) c.Fail("C5: softcap must not be negative; 0 means none");
  if (!c.HasShape(0) || !c.HasShape(1) || !c.HasShape(2)) return;
  const Shape &q = c.shape(0), &k = c.shape(1), &v = c.shape(2);
  const auto all = [&] {
    return StrCat("q ", ToString(q), ", k ", ToString(k), ", v ", ToString(v));
  };
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) {
    c.Fail(StrCat("C1: q, k, v must be [batch,sequence,heads,channels]; got ", all()));
  }
  if (Differ(q[0], k[0]) || Differ(WholeSequence(c, q[1]), k[1]) || Differ(q[3], k[3]) || Differ(k[0], v[0]) ||
      Differ(k[1], v[1]) || Differ(k[2], v[2])) {
    c.Fail(StrCat("C2: batch, sequence, kv heads and q/k channels must agree; got ", all()));
  }
  if (q[2].IsConstant() && k[2].IsConstant() &&
      (k[2].Constant() == 0 || q[2].Constant() % k[2].Constant() != 0)) {
    c.Fail(StrCat("C3: query heads must be a multiple of kv heads; got ", all()));
  }
  if (c.HasShape(3) && (c.shape(3).size() != 1 || Differ(c.shape(3)[0], q[2]))) {
    c.Fail(
        StrCat("C6: sinks ", ToString(c.shape(3)), " must hold one value per query head; ", all()));
  }
  CheckStarts(c, 4);
  c.SetOutput(0, c.in(0)->dtype, {q[0], q[1], q[2], v[3]});
  c.SetOutput(1, DType::kFloat32, {q[0], q[2], q[1]});
}

void InferAttentionGradient(InferContext& c) {
  if (c.HasShape(1)) CheckStarts(c, 8);
  for (size_t i = 0; i < 3; ++i) c.SetOutput(i, c.in(i)->dtype, c.shape(i));
  if (c.node.out(3) != nullptr) c.SetOutput(3, DType::kFloat32, c.shape(6));
}

void AttentionGradient(GradientContext& g) {
  if (g.OutputGradient(0) == nullptr) return;
  Value* lse = SavedOutput(g, 1, "lse");
  const bool sinks = g.in(3) != nullptr && g.Needs(3);
  Value* accumulator = sinks ? g.Accumulator(3) : nullptr;
  std::vector<Value*> inputs = {g.in(0), g.in(1), g.in(2), g.out(0), lse, g.OutputGradient(0)};
  if (g.in(3) != nullptr) inputs.push_back(g.in(3));
  if (accumulator != nullptr) inputs.push_back(accumulator);
  if (g.in(4) != nullptr) {
    inputs.resize(8, nullptr);
    inputs.push_back(g.in(4));
  }
  const auto grads = g.builder.Ops("AttentionGradient", inputs, sinks ? 4 : 3, g.node.attributes);
  for (size_t i = 0; i < 3; ++i) {
    if (g.Needs(i)) g.Add(i, grads[i]);
  }
  if (accumulator != nullptr) {
    g.SetAccumulator(3, grads[3]);
  } else if (sinks) {
    g.Add(3, grads[3]);
  }
}

// Of a query and a key that it sees, the queries at the first positions.
double PairsBefore(const AttentionConfig& c, int64_t positions) {
  const auto length = static_cast<double>(positions), unseen = c.window > 0 ? std::max(0.0, length - static_cast<double>(c.window)) : 0;
  return (length * (length + 1) - unseen * (unseen + 1)) / 2;
}

Cost AttentionCost(const Node& n) {
  const Dims q = ToDims(n.in(0)->shape), k = ToDims(n.in(1)->shape), v = ToDims(n.in(2)->shape);
  const AttentionConfig c(n.attributes, q, k, v);
  double pairs = 0;
  for (int64_t run = 0; run < c.rows.runs(); ++run) {
    const int64_t first = c.FirstPosition(run), end = first + c.run();
    pairs += c.causal ? PairsBefore(c, end) - PairsBefore(c, first) : static_cast<double>(c.run()) * static_cast<double>(c.keys);
  }
  const double rows = static_cast<double>(c.batch * c.q_heads);
  const double values = static_cast<double>(NumElements(q) + NumElements(k) + NumElements(v)) +
                        rows * static_cast<double>(c.queries * c.dv);
  return {2 * rows * pairs * static_cast<double>(c.d + c.dv), 4 * values};
}

struct CaseShape {
  int64_t batch, sequence, q_heads, kv_heads, d, dv;
};

OpCase Case(std::string name, CaseShape s, Attributes attributes = {}, bool sinks = false,
            int outputs = 1) {
  OpCase op_case{std::move(name),
                 {{.dims = {s.batch, s.sequence, s.q_heads, s.d}},
                  {.dims = {s.batch, s.sequence, s.kv_heads, s.d}},
                  {.dims = {s.batch, s.sequence, s.kv_heads, s.dv}}},
                 std::move(attributes),
                 outputs,
                 outputs == 1};
  if (sinks) op_case.in.push_back({.dims = {s.q_heads}});
  return op_case;
}

// The queries of one share of the rows; `s.sequence` is the whole sequence.
OpCase ShareOf(std::string name, RowShare rows, CaseShape s, Attributes attributes = {}, bool sinks = false, int outputs = 1) {
  attributes.Set("row_shares", rows.shares);
  attributes.Set("row_share", rows.share);
  OpCase op_case = Case(std::move(name), s, std::move(attributes), sinks, outputs);
  op_case.in[0].dims[1] = s.sequence / rows.shares;
  return op_case;
}

// Documents that begin at `begins`; of later rows one position later each, the first aside.
OpCase WithStarts(OpCase op_case, const std::vector<int64_t>& begins) {
  const int64_t batch = op_case.in[1].dims[0], sequence = op_case.in[1].dims[1];
  CaseInput starts{.kind = CaseInput::Kind::kInts, .dims = {batch, sequence}};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < sequence; ++i) {
      int64_t start = 0;
      for (const int64_t begin : begins) {
        const int64_t moved = begin == 0 ? 0 : begin + b;
        if (moved <= i) start = moved;
      }
      starts.ints.push_back(start);
    }
  }
  if (op_case.in.size() == 3) op_case.in.push_back({.kind = CaseInput::Kind::kAbsent});
  op_case.in.push_back(std::move(starts));
  return op_case;
}

std::vector<OpCase> AttentionCases() {
  const CaseShape small{2, 9, 4, 2, 8, 8}, tiles{1, 130, 2, 1, 16, 16};
  return {Case("causal", small),
          Case("one_token", {2, 1, 2, 2, 8, 8}, {}, true),
          Case("no_tokens", {2, 0, 2, 2, 8, 8}, {}, true),
          Case("not_causal", small, {{"causal", int64_t{0}}, {"scale", 0.25}}),
          Case("window", {1, 75, 2, 1, 8, 8}, {{"window", int64_t{5}}}),
          Case("window_over_tiles", tiles, {{"window", int64_t{70}}}, true),
          Case("window_one", small, {{"window", int64_t{1}}}, true),
          Case("sinks", small, {}, true),
          Case("softcap", small, {{"softcap", 2.0}}),
          Case("everything", {2, 67, 6, 2, 10, 7},
               {{"softcap", 5.0}, {"window", int64_t{33}}, {"scale", 0.5}}, true),
          Case("wide_values", {1, 17, 2, 2, 8, 24}),
          Case("odd_channels", {1, 33, 3, 1, 13, 5}),
          Case("tiles", tiles),
          Case("tiles_not_causal", tiles, {{"causal", int64_t{0}}}, true),
          Case("saved", tiles, {}, false, 2),
          Case("saved_sinks", {2, 66, 4, 1, 8, 8}, {{"softcap", 3.0}}, true, 2),
          WithStarts(Case("documents", small), {0, 3, 4}),
          WithStarts(Case("documents_over_tiles", {2, 150, 4, 2, 8, 8}), {0, 1, 64, 66, 140}),
          WithStarts(Case("one_document_late", {1, 200, 2, 2, 8, 8}), {0, 130}),
          WithStarts(Case("documents_window_sinks", {2, 140, 4, 2, 10, 7},
                          {{"softcap", 5.0}, {"window", int64_t{40}}}, true),
                     {0, 20, 128}),
          WithStarts(Case("documents_saved", tiles, {}, false, 2), {0, 65}),
          ShareOf("first_share", {2, 0}, {2, 16, 4, 2, 8, 8}),
          ShareOf("last_share", {2, 1}, {2, 16, 4, 2, 8, 8}, {}, true),
          ShareOf("one_query_a_run", {3, 1}, {1, 6, 2, 1, 8, 8}, {}, true),
          ShareOf("no_queries", {2, 1}, {1, 0, 2, 1, 8, 8}),
          ShareOf("share_over_tiles", {2, 0}, {2, 300, 4, 2, 8, 8}),
          ShareOf("share_saved", {3, 2}, {1, 408, 2, 1, 16, 16}, {}, true, 2),
          ShareOf("share_not_causal", {2, 1}, {1, 140, 2, 2, 8, 8}, {{"causal", int64_t{0}}}),
          ShareOf("share_window", {4, 1}, {2, 320, 2, 1, 8, 8}, {{"window", int64_t{30}}}, true),
          ShareOf("share_everything", {2, 0}, {2, 268, 6, 2, 10, 7}, {{"softcap", 5.0}, {"window", int64_t{90}}, {"scale", 0.5}}, true),
          WithStarts(ShareOf("share_documents", {2, 1}, {2, 280, 4, 2, 8, 8}), {0, 1, 64, 100, 205}),
          WithStarts(ShareOf("share_documents_window_sinks", {2, 0}, {2, 280, 4, 2, 10, 7}, {{"softcap", 5.0}, {"window", int64_t{40}}}, true),
                     {0, 20, 128, 250})};
}

}  // namespace

const OpSchema& AttentionSchema() {
  static const OpSchema schema{
      .name = "Attention",
      .domain = "ai.weir",
      .doc =
          R"(s[j] = scale * q[b,i,h,:] . k[b,j,h/(Hq/Hk),:];  s = softcap * tanh(s / softcap) if softcap > 0
keys: j <= i if causal (1), i - window < j if window > 0 (0 = none), starts[b,i] <= j;  lse = log(sum_j exp(s[j])
[+ exp(sinks[h])]);  y[b,i,h,:] = sum_j exp(s[j] - lse) * v[b,j,h/(Hq/Hk),:]
q [B,S,Hq,D], k [B,S,Hk,D], v [B,S,Hk,Dv], sinks? [Hq], starts? int64 [B,S]; y [B,S,Hq,Dv]; attribute scale
(default 1/sqrt(D)). Output 1 (optional) lse [B,Hq,S] float32, saved for backward.
With `row_shares` (1) R > 1 the queries are share `row_share` (0) of the rows of k's sequence, q [B,S/R,Hq,D], y alike,
lse [B,Hq,S/R]: runs row_share and 2R-1-row_share of its 2R equal runs, behind each other; i is then a query's position.
Accumulates in float32 over key tiles in order with a running maximum; O(S) memory. A query's bits do not depend on R.
Deterministic: the same bits whatever the number of threads.
C1 rank 4. C2 batch, sequence, kv heads, q/k channels agree. C3 Hq a multiple of Hk.
C4 window >= 0 and only with causal. C5 softcap >= 0. C6 sinks [Hq]. C7 starts int64 [B,S] and only
with causal. C8 starts[b,i] <= i, not below starts[b,i-1] (GPUs take min(starts[b,i], i)).
C9 0 <= row_share < row_shares, S a multiple of 2*row_shares above one.
Tiles that no query sees are skipped. Cost: 2*pairs*(D+Dv) flop, starts not counted.  Source: Vaswani et al. 2017, arXiv:1706.03762, eq. (1); tiles:
Dao 2023, arXiv:2307.08691.)",
      .min_inputs = 3,
      .max_inputs = 5,
      .min_outputs = 1,
      .max_outputs = 2,
      .infer = InferAttention,
      WEIR_REFERENCE(AttentionReference),
      .gradient = AttentionGradient,
      .cost = AttentionCost,
      .cases = AttentionCases};
  return schema;
}

const OpSchema& AttentionGradientSchema() {
  static const OpSchema schema{
      .name = "AttentionGradient",
      .domain = "ai.weir",
      .doc = R"(p = exp(s - lse), delta = dy . y, ds = p * (dy . v - delta) * (1 - (s/softcap)^2)
dq (=) scale * sum_j ds k, dk (=) scale * sum_i ds q, dv (=) sum_i p dy,
dsinks (+)= -sum_{b,i} exp(sink - lse) * delta
inputs q, k, v, y, lse, dy, sinks?, dsinks accumulator?, starts?; outputs dq, dk, dv, dsinks?; attributes
as Attention; dk, dv are of these queries alone. With an accumulator, dsinks is that buffer and is added to (+=).
Recomputes p by tiles; O(S) memory. Accumulates in float32: dk and dv over the heads of the
group, then query tiles, in order; dq over key tiles in order. Deterministic for any threads.
Cost: 2.5 forward.  Source: Dao 2023, arXiv:2307.08691.)",
      .min_inputs = 6,
      .max_inputs = 9,
      .min_outputs = 3,
      .max_outputs = 4,
      .infer = InferAttentionGradient,
      WEIR_REFERENCE(AttentionGradientReference),
      .cost =
          [](const Node& n) {
            const Cost forward = AttentionCost(n);
            return Cost{2.5 * forward.flops, 2 * forward.bytes};
          },
      .aliases = {{3, 7}}};
  return schema;
}

}  // namespace weir
