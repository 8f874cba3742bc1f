#include "graph/op_schema.h"
#include "graph/vocabulary_share.h"
#include "kernels/common/dims.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/cross_entropy/token_weights.h"
#include "kernels/gemm/sgemm.h"
#include "kernels/ring_dtp/reference.h"
#include "kernels/ring_dtp/sizes.h"

namespace weir {
namespace {

void CheckLeaf(InferContext& c) {
  const int64_t leaf = c.node.attributes.Int("vocab_leaf", kVocabularyLeaf);
  if (leaf < 1 || (leaf > kSgemmBlockK && leaf % kSgemmBlockK != 0)) {
    c.Fail(StrCat("C5: vocab_leaf is ", leaf, ", expected 1..", kSgemmBlockK, " or a multiple of ", kSgemmBlockK));
  }
}

// Columns of all ranks together; `weight` has one rank's share of them.
Dim WholeVocabulary(InferContext& c) {
  const Attributes& attributes = c.node.attributes;
  const int64_t ranks = attributes.Int("vocab_parallel", 1);
  const Dim& held = c.shape(1)[0];
  if (ranks == 1) return held;
  const int64_t vocabulary = attributes.Int("vocabulary", 0);
  if (ranks < 1 || vocabulary < 1 || !held.IsConstant()) {
    c.Fail(StrCat("C6: vocab_parallel is ", ranks, ", vocabulary ", vocabulary, "; expected at least 1 of each"));
  }
  const int64_t leaf = attributes.Int("vocab_leaf", kVocabularyLeaf);
  const int64_t unit = attributes.Int("share_columns", leaf);
  if (unit < leaf || unit % leaf != 0) c.Fail(StrCat("C6: share_columns is ", unit, ", expected a multiple of vocab_leaf ", leaf));
  bool share = false;
  for (int64_t member = 0; member < ranks && !share; ++member) {
    share = VocabularyShare(vocabulary, unit, ranks, member).size() == held.Constant();
  }
  if (!share) {
    c.Fail(StrCat("C6: ", held.Constant(), " rows are no rank's share of ", vocabulary, " columns in leaves of ", unit,
                  " over ", ranks, " ranks"));
  }
  return vocabulary;
}

void CheckMove(InferContext& c) {
  const Attributes& attributes = c.node.attributes;
  const std::string move = attributes.String("move", "weights");
  if (move != "weights" && move != "activations" && move != "auto") {
    c.Fail(StrCat("C7: move is '", move, "', expected weights, activations or auto"));
  }
  if (move != "weights" && c.node.out(2) != nullptr && attributes.Int("shard_gradient", 0) == 0) {
    c.Fail(StrCat("C7: move is '", move, "' with a whole gradient of the weight, which would travel as V x H float32, more than the weight; expected shard_gradient 1"));
  }
}

void InferRingDtp(InferContext& c) {
  c.SetOutput(0, DType::kFloat64, {});
  const Shape &x = c.shape(0), &weight = c.shape(1), &labels = c.shape(2);
  if (x.empty() || weight.size() != 2 || Differ(x.back(), weight[1])) {
    c.Fail(StrCat("C1: x ", ToString(x), " does not match weight ", ToString(weight),
                  "; expected x [...,H] and weight [V,H]"));
  }
  if (c.node.attributes.Int("vocab_parallel", 1) == 1 && weight[0].IsConstant() && weight[0].Constant() < 1) {
    c.Fail(StrCat("C1: weight ", ToString(weight), " must have a vocabulary of at least 1"));
  }
  bool same = labels.size() + 1 == x.size();
  for (size_t i = 0; same && i < labels.size(); ++i) same = !Differ(labels[i], x[i]);
  if (!same || c.in(2)->dtype != DType::kInt64) {
    c.Fail(StrCat("C2: labels ", DTypeName(c.in(2)->dtype), ToString(labels),
                  " must be int64, shaped as x ", ToString(x), " without the last axis"));
  }
  CheckTokenWeights(c, 5, 2, "C8");
  const int64_t strip = c.node.attributes.Int("strip", 8192);
  if (strip < 1) c.Fail(StrCat("C4: strip is ", strip, ", expected at least 1 column"));
  CheckLeaf(c);
  CheckMove(c);
  const Dim vocabulary = WholeVocabulary(c);
  const Shape gradient = {c.node.attributes.Int("shard_gradient", 0) != 0 ? weight[0] : vocabulary, weight[1]};
  if (c.HasShape(4) && !Same(c.shape(4), gradient)) {
    c.Fail(StrCat("C1: accumulator ", ToString(c.shape(4)), ", expected ", ToString(gradient)));
  }
  c.SetOutput(1, c.in(0)->dtype, x);
  c.SetOutput(2, DType::kFloat32, gradient);
}

Cost RingDtpCost(const Node& n) {
  const HeadSizes s = HeadSizesOf(ToDims(n.in(0)->shape), ToDims(n.in(1)->shape), n.attributes);
  const double products = (s.whole() ? 1 : 2) + (n.out(1) != nullptr) + (n.out(2) != nullptr);
  const double t = static_cast<double>(s.tokens), h = static_cast<double>(s.channels),
               v = static_cast<double>(s.vocabulary);
  return {2 * products * t * h * v, 4 * (products * t * h + (products + 1) * v * h)};
}

OpCase Case(std::string name, Dims x, int64_t vocabulary, std::vector<int64_t> labels,
            int64_t strip, int outputs = 3, bool accumulate = true) {
  Dims tokens(x.begin(), x.end() - 1);
  const Dims weight = {vocabulary, x.back()};
  OpCase op_case{
      std::move(name),
      {{.dims = std::move(x)},
       {.dims = weight},
       {.kind = CaseInput::Kind::kInts, .dims = std::move(tokens), .ints = std::move(labels)},
       {.kind = CaseInput::Kind::kFloats, .floats = {0.125}}},
      {{"strip", strip}},
      outputs,
      /*check_gradient=*/false};
  if (accumulate) op_case.in.push_back({.dims = weight});
  return op_case;
}

OpCase Weighted(OpCase op_case, std::vector<double> weights) {
  op_case.name = "weighted_" + op_case.name;
  if (op_case.in.size() == 4) op_case.in.push_back({.kind = CaseInput::Kind::kAbsent});
  op_case.in.push_back({.kind = CaseInput::Kind::kFloats, .dims = op_case.in[2].dims, .floats = std::move(weights)});
  return op_case;
}

std::vector<OpCase> RingDtpCases() {
  OpCase small_leaves = Case("small_leaves", {2, 3, 5}, 37, {0, 36, 8, 7, -100, 15}, 16);
  small_leaves.attributes.Set("vocab_leaf", 8);
  return {small_leaves,
          Weighted(Case("strips", {2, 3, 5}, 700, {0, 699, 256, 255, -100, 512}, 256), {0.5, 3, 1, 0, 2, 0.125}),
          Weighted(Case("no_accumulator", {3, 6}, 300, {299, -100, 0}, 256, 3, false), {2, 0, 0.75}),
          Weighted(Case("frozen_weight", {3, 6}, 300, {299, 1, 0}, 8192, 2, false), {2, 0.25, 0}),
          Case("tiny", {2, 3, 5}, 7, {0, 6, 3, 2, 2, 5}, 8192),
          Case("strips", {2, 7, 9}, 700,
               {0, 699, 256, 255, 511, 512, -100, 3, 4, 5, 600, 7, 8, -100}, 256),
          Case("leaves", {3, 4}, 4099, {4098, 2048, 17}, 1024),
          Case("no_accumulator", {3, 6}, 300, {299, -100, 0}, 256, 3, false),
          Case("frozen_weight", {3, 6}, 300, {299, -100, 0}, 256, 2, false),
          Case("all_ignored", {2, 2, 3}, 5, {-100, -100, -100, -100}, 256),
          Case("one_class", {3, 4}, 1, {0, 0, 0}, 256),
          Case("no_tokens", {0, 4}, 5, {}, 256),
          Case("no_tokens_no_accumulator", {0, 4}, 300, {}, 256, 3, false)};
}

}  // namespace

const OpSchema& RingDtpSchema() {
  static const OpSchema schema{
      .name = "RingDtp",
      .domain = "ai.weir",
      .doc =
          R"(logits = x weight^T;  loss = CrossEntropy(logits, labels, loss_scale, weights);
dx (=) dlogits weight;  acc' (+=) dlogits^T x;  dlogits = (softmax(logits) - onehot(labels)) * loss_scale * weights
x [...,H], weight [V,H] float32, labels [...] int64, loss_scale float32 scalar, acc (optional) [V,H],
weights (optional) like labels, float32: what each token's loss counts for; loss
float64 scalar, dx like x, acc' [V,H] (alias of acc; without acc the gradient alone); dx and acc' may be
absent. Attributes: ignore_index (-100), strip (8192): columns of logits that live at a time; vocab_leaf (2048):
columns of one (max, sum) pair of the log-sum-exp, part of the numerical definition.
Forward and gradients in one node; logits exist as a strip of min(N,4096) tokens x strip columns: token
blocks of 4096 outside, vocabulary strips inside, once for the log-sum-exp, once more for the gradients.
On several ranks (vocab_parallel P, group, vocabulary V) weight is this rank's run of vocabulary leaves, V/P
columns; x and labels are its own tokens, N may differ over ranks. The weight travels: windows of `strip`
columns, rounded up to whole leaves, in vocabulary order, sent by their holders to the others, once per pass;
the next window travels while one is at work. Windows outside, token blocks inside. acc' is [V,H]: the sums
over this rank's tokens, to be added over all ranks; with shard_gradient 1 it is [V',H] like weight: each rank's parts of a
window go to its holders, who add them by the tree over the group, while the next window is at work.
With move = activations the weight stays and tokens travel (auto: where N < V/P; N is then the same on all ranks): blocks
of 4096 tokens of all ranks pass the holders in vocabulary order, x and labels (then the log-sum-exp and weights) from their own rank,
the sums so far (then dx so far) from the holder before; the last holder sends them home. dW of a shard is made from
zero for each rank's tokens and added by the same tree. Shares are runs of share_columns (vocab_leaf) columns.
All sums are those of Linear, CrossEntropy, CrossEntropyGradient, MatMul and LinearWeightGradient (with the
default vocab_leaf): the same bits for any P, move and strip (rounded up to 256 columns, the k block of dX).
Deterministic for any threads.
C1 x and weight agree in H, acc is [V,H], V >= 1. C2 labels int64, shaped as x without the last axis.
C3 every label in [0,V) or ignore_index, else an error with position and value, before anything is written.
C4 strip >= 1. C5 vocab_leaf is at most 256 or a multiple of it. C6 weight is a rank's share. C7 move is weights, activations or auto; not weights: shard_gradient 1 where acc' is asked
for. C8 weights float32, shaped as labels. loss_scale is the same on all ranks.
Cost: 8NVH flop, 6NVH when strip >= V (logits are kept, not made twice); P > 1: 16VH(P-1)/P bytes in, with
activations 8NH(P-1) and 4NHP for dx. Workspace:
about 4 min(N,4096) strip bytes, and 4 * 512H for partial sums of dW; P > 1: two windows of 4H strip bytes and
16 bytes per token, with activations 4 blocks of 4096 x 4H and 4VH/P (log2 P + 1).
Source: torch.nn.functional.linear and cross_entropy (reduction sum), forward and backward; arXiv:2609.14306.)",
      .min_inputs = 4,
      .max_inputs = 6,
      .min_outputs = 1,
      .max_outputs = 3,
      .infer = InferRingDtp,
      WEIR_REFERENCE(RingDtpReference),
      .cost = RingDtpCost,
      .cases = RingDtpCases,
      .aliases = {{2, 4}},
      .nondifferentiable_inputs = {2, 3, 5}};
  return schema;
}

}  // namespace weir
