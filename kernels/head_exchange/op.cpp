#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/common/dims.h"
#include "kernels/head_exchange/exchange.h"

namespace weir {
namespace {

RowDeal DealOf(InferContext& c, int64_t heads) {
  const Attributes& a = c.node.attributes;
  const HeadShare share{a.Int("ranks", 1), heads, a.Int("sharing", 1)};
  if (share.ranks < 1 || a.Int("piece", 1) < 1) c.Fail("C1: ranks and piece must be at least 1");
  if (!share.possible()) {
    c.Fail(StrCat("C2: ", heads, " heads cannot be spread evenly over ", share.ranks, " ranks",
                  share.sharing == 1 ? "" : StrCat(", ", share.sharing, " of which hold the same")));
  }
  const RowDeal deal{share, a.Int("deal", 0) != 0, 0};
  if (deal.dealt && (share.sharing == 1 || heads % share.groups() != 0)) {
    c.Fail(StrCat("C6: rows are dealt to ranks that share heads, and heads to at least one such group each; got ", heads, " heads, ",
                  share.groups(), " groups of ", share.sharing));
  }
  return deal;
}

// Ranks' parts in the rows that a rank holds of its heads.
int64_t PartsHeld(const RowDeal& deal) { return deal.dealt ? deal.heads.groups() : deal.heads.ranks; }

void CheckHalves(InferContext& c, const RowDeal& deal, const Dim& part) {
  if (!deal.dealt || !part.IsConstant() || part.Constant() % 2 == 0) return;
  c.Fail(StrCat("C7: parts of ", part.Constant(), " tokens cannot be halved; the whole sequence must be a multiple of 2*ranks = ",
                2 * deal.heads.ranks));
}

bool HasRows(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (!c.HasShape(0)) return false;
  const Shape& x = c.shape(0);
  if (x.size() != 4 || !x[2].IsConstant()) c.Fail(StrCat("C3: x must be [batch,sequence,heads,channels]; got ", ToString(x)));
  return true;
}

void InferSequenceToHeads(InferContext& c) {
  if (!HasRows(c)) return;
  const Shape& x = c.shape(0);
  const RowDeal deal = DealOf(c, x[2].Constant());
  CheckHalves(c, deal, x[1]);
  c.SetOutput(0, c.in(0)->dtype, {x[0], PartsHeld(deal) * x[1], deal.heads.held(), x[3]});
}

void InferHeadsToSequence(InferContext& c) {
  if (!HasRows(c)) return;
  const Shape& x = c.shape(0);
  const RowDeal deal = DealOf(c, c.node.attributes.Int("heads"));
  const int64_t held = deal.heads.held(), parts = PartsHeld(deal);
  if (x[2].Constant() != held) c.Fail(StrCat("C4: x ", ToString(x), " must have ", held, " heads"));
  if (x[1].IsConstant() && x[1].Constant() % parts != 0) {
    c.Fail(StrCat("C5: x ", ToString(x), ": the sequence cannot be cut into ", parts, " equal parts"));
  }
  const Dim part = DivExact(x[1], parts);
  CheckHalves(c, deal, part);
  c.SetOutput(0, c.in(0)->dtype, {x[0], part, deal.heads.heads, x[3]});
}

// One rank alone holds everything.
template <class T>
void AloneReference(Eval<T>& e) {
  WEIR_CHECK(e.attributes.Int("ranks", 1) == 1, ErrorCode::kUnsupportedOp, "an exchange between ranks has no meaning on one rank");
  e.out[0] = e.floats(0);
}

void SequenceToHeadsGradient(GradientContext& g) {
  Value* dy = g.OutputGradient();
  if (dy == nullptr || !g.Needs(0)) return;
  Attributes attributes = g.node.attributes;
  attributes.Set("heads", g.in(0)->shape[2].Constant());
  g.Add(0, g.builder.Op("HeadsToSequence", {dy}, attributes));
}

void HeadsToSequenceGradient(GradientContext& g) {
  Value* dy = g.OutputGradient();
  if (dy == nullptr || !g.Needs(0)) return;
  Attributes attributes = g.node.attributes;
  attributes.Erase("heads");
  g.Add(0, g.builder.Op("SequenceToHeads", {dy}, attributes));
}

Cost ExchangeCost(const Node& n) {
  const auto bytes = [](const Value* value) {
    return static_cast<double>(BytesOf(value->dtype, NumElements(ToDims(value->shape))));
  };
  return {.flops = 0, .bytes = 2 * (bytes(n.in(0)) + bytes(n.out(0)))};
}

}  // namespace

const OpSchema& SequenceToHeadsSchema() {
  static const OpSchema schema{
      .name = "SequenceToHeads",
      .domain = "ai.weir",
      .doc = R"(y[b, p*S + s, j, :] = x_p[b, s, first + j, :]  for every rank p of `group`, x_p its x
x [B,S,h,D] float32|bfloat16, the rank's part of each sequence, all heads; y [B,ranks*S,h',D] alike, the whole sequence,
this rank's h' = max(1, h/ranks) heads from first = rank*h/ranks on. With fewer heads than ranks a head goes to
ranks/h consecutive ranks. With `sharing` (1) R consecutive ranks hold the same heads: h' = max(1, h*R/ranks) from
first = floor(rank/R)*h*R/ranks on; and with `deal` = 1 each holds its share of the rows alone, y [B,ranks*S/R,h',D]: of 2R
equal runs of the sequence, the r-th from the front and the r-th from the back, r = rank mod R (kernels/common/row_share.h).
Attributes: group, ranks (its size, 1), sharing, deal, piece (tokens under way at a time; what 32 MiB hold).
Moves bytes, adds nothing: deterministic. C1 ranks, piece >= 1. C2 R divides ranks; h a multiple of ranks/R, or ranks/R of h.
C3 rank 4. C6 deal: R > 1, h a multiple of ranks/R. C7 deal: S even.
Cost on a rank: (ranks-1)/ranks of x or of y, of which there is more, in.  Source: Jacobs et al. 2023, arXiv:2309.14509.)",
      .infer = InferSequenceToHeads,
      WEIR_REFERENCE(AloneReference),
      .gradient = SequenceToHeadsGradient,
      .cost = ExchangeCost,
      .cases = [] {
        return std::vector<OpCase>{{"alone", {{.dims = {2, 5, 4, 6}}}}, {"pieces", {{.dims = {2, 5, 3, 7}}}, {{"piece", int64_t{2}}}}};
      }};
  return schema;
}

const OpSchema& HeadsToSequenceSchema() {
  static const OpSchema schema{
      .name = "HeadsToSequence",
      .domain = "ai.weir",
      .doc = R"(y[b, s, h, :] = sum over the ranks p of `group` that hold head h of x_p[b, rank*S + s, h - first_p, :]
x [B,ranks*S,h',D] float32|bfloat16, the whole sequence, this rank's heads; y [B,S,heads,D] alike, this rank's part, all
heads: the way back of SequenceToHeads and its transpose. Attributes: group, ranks, sharing, deal, piece as there; heads.
Replicas are added in the order of ranks in float32, rounded once; otherwise only bytes move. Deterministic.
C1..C3, C6, C7 as SequenceToHeads with h = heads. C4 h' as there. C5 the sequence is a multiple of the parts in it.
Cost on a rank: (ranks-1)/ranks of x out and as much in.)",
      .infer = InferHeadsToSequence,
      WEIR_REFERENCE(AloneReference),
      .gradient = HeadsToSequenceGradient,
      .cost = ExchangeCost,
      .cases = [] {
        return std::vector<OpCase>{{"alone", {{.dims = {2, 5, 4, 6}}}, {{"heads", int64_t{4}}}},
                                   {"pieces", {{.dims = {2, 5, 3, 7}}}, {{"heads", int64_t{3}}, {"piece", int64_t{2}}}}};
      }};
  return schema;
}

}  // namespace weir
