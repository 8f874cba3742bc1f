#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/common/dims.h"
#include "kernels/head_exchange/exchange.h"

namespace weir {
namespace {

HeadShare ShareOf(InferContext& c, int64_t heads) {
  const HeadShare share{c.node.attributes.Int("ranks", 1), heads};
  if (share.ranks < 1 || c.node.attributes.Int("piece", 1) < 1) c.Fail("C1: ranks and piece must be at least 1");
  if (!share.possible()) c.Fail(StrCat("C2: ", heads, " heads cannot be spread evenly over ", share.ranks, " ranks"));
  return share;
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
  const HeadShare share = ShareOf(c, x[2].Constant());
  c.SetOutput(0, c.in(0)->dtype, {x[0], share.ranks * x[1], share.held(), x[3]});
}

void InferHeadsToSequence(InferContext& c) {
  if (!HasRows(c)) return;
  const Shape& x = c.shape(0);
  const HeadShare share = ShareOf(c, c.node.attributes.Int("heads"));
  if (x[2].Constant() != share.held()) c.Fail(StrCat("C4: x ", ToString(x), " must have ", share.held(), " heads"));
  if (x[1].IsConstant() && x[1].Constant() % share.ranks != 0) {
    c.Fail(StrCat("C5: x ", ToString(x), ": the sequence cannot be cut into ", share.ranks, " equal parts"));
  }
  c.SetOutput(0, c.in(0)->dtype, {x[0], DivExact(x[1], share.ranks), share.heads, x[3]});
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
ranks/h consecutive ranks. Attributes: group, ranks (its size, 1), piece (tokens under way at a time; what 32 MiB hold).
Moves bytes, adds nothing: deterministic. C1 ranks, piece >= 1. C2 h a multiple of ranks, or ranks of h. C3 rank 4.
Cost on a rank: (ranks-1)/ranks of x out and as much in.  Source: Jacobs et al. 2023, arXiv:2309.14509.)",
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
heads: the way back of SequenceToHeads and its transpose. Attributes: group, ranks, piece as there; heads.
Replicas are added in the order of ranks in float32, rounded once; otherwise only bytes move. Deterministic.
C1..C3 as SequenceToHeads with h = heads. C4 h' = max(1, heads/ranks). C5 the sequence is a multiple of ranks.
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
