#include "graph/layout.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

void InferTreeReduceGradient(InferContext& c) {
  if (c.node.attributes.Int("ranks", 1) < 1) c.Fail("C1: ranks must be at least 1");
  if (c.node.attributes.Int("piece", 1) < 1) c.Fail("C2: piece must be at least 1");
  c.SetDType(0, DType::kFloat32);
  if (c.HasShape(0)) c.SetOutput(0, DType::kFloat32, c.shape(0));
  if (c.node.out(1) == nullptr) return;
  const int64_t staging = c.node.attributes.Int("staging", 0);
  if (staging < 2 * c.node.attributes.Int("ranks", 1)) c.Fail("C3: staging must hold two elements of each rank");
  c.SetOutput(1, DType::kFloat32, {Dim(staging)});
}

void InferTreeReduceJoin(InferContext& c) {
  c.SetDType(0, DType::kFloat32);
  if (c.HasShape(0)) c.SetOutput(0, DType::kFloat32, c.shape(0));
}

void InferReduceRows(InferContext& c) {
  const int64_t ranks = c.node.attributes.Int("ranks", 1), staging = c.node.attributes.Int("staging", 2);
  if (ranks < 1) c.Fail("C1: ranks must be at least 1");
  if (staging < 2 * ranks || (ranks > 1 && c.node.out(1) == nullptr)) c.Fail("C2: staging must hold two elements of each rank");
  c.SetDType(0, DType::kFloat32);
  if (c.node.out(1) != nullptr) c.SetOutput(1, DType::kFloat32, {Dim(staging)});
  if (!c.HasShape(0) || !c.HasShape(1)) return;
  const Shape &whole = c.shape(0), &own = c.shape(1);
  bool share = false;
  for (int64_t member = 0; member < ranks && !share && !own.empty() && own.size() == whole.size() && whole[0].IsConstant(); ++member) {
    share = own[0] == Dim(ShareOf(whole[0].Constant(), ranks, member).size()) && std::equal(own.begin() + 1, own.end(), whole.begin() + 1);
  }
  if (!share) c.Fail(StrCat("C3: rows ", ToString(own), " are no rank's share of ", ToString(whole), " over ", ranks, " ranks"));
  c.SetOutput(0, DType::kFloat32, own);
}

// One rank alone holds everything.
template <class T>
void ReduceRowsReference(Eval<T>& e) {
  e.out[0] = e.x(0);
  if (e.out.size() > 1) e.out[1] = Array<T>::Floats({e.attributes.Int("staging", 2)});
}

Cost ReduceRowsCost(const Node& n) {
  const double count = static_cast<double>(NumElements(ToDims(n.in(0)->shape)));
  const double ranks = static_cast<double>(n.attributes.Int("ranks", 1));
  return {count * (ranks - 1) / ranks, 8 * count * (ranks - 1) / ranks};
}

// One rank's view: the sum of one accumulator is that accumulator.
template <class T>
void TreeReduceGradientReference(Eval<T>& e) {
  e.out[0] = e.x(0);
  if (e.out.size() > 1) e.out[1] = Array<T>::Floats({e.attributes.Int("staging", 0)});
}

Cost TreeReduceGradientCost(const Node& n) {
  const double count = static_cast<double>(NumElements(ToDims(n.in(0)->shape)));
  const double ranks = static_cast<double>(n.attributes.Int("ranks", 1));
  return {count * (ranks - 1) / ranks, 16 * count * (ranks - 1) / ranks};
}

}  // namespace

const OpSchema& TreeReduceGradientSchema() {
  static const OpSchema schema{
      .name = "TreeReduceGradient",
      .domain = "ai.weir",
      .doc =
          "acc' = sum of acc over the ranks of attribute `group`, in place, on every rank of it\n"
          "float32, any shape; attributes: group, ranks (its size), piece (elements in flight per rank, 65536).\n"
          "A fixed binary tree over the rank within the group, t(a..b) = t(a..m) + t(m..b), m = a + (b-a)/2, added\n"
          "by the owner of a slice and gathered. The same bits on every rank and for any piece. Without ranks: acc.\n"
          "With an output 1, memory of `staging` elements that one such node hands to the next (its input 1), a GPU sums beside\n"
          "what follows: acc' and staging are whole after TreeReduceJoin, which both must be inputs of.\n"
          "C1 ranks >= 1; C2 piece >= 1; C3 staging >= 2 ranks.\n"
          "Cost on W ranks: N(W-1)/W flop and 8N(W-1)/W bytes each way.",
      .max_inputs = 2,
      .max_outputs = 2,
      .infer = InferTreeReduceGradient,
      WEIR_REFERENCE(TreeReduceGradientReference),
      .cost = TreeReduceGradientCost,
      .cases = [] { return std::vector<OpCase>{{"alone", {{.dims = {5, 67}}}}, {"empty", {{.dims = {0}}}}}; },
      .aliases = {{0, 0}, {1, 1}},
      .has_side_effect = true};
  return schema;
}

const OpSchema& ReduceRowsSchema() {
  static const OpSchema schema{
      .name = "ReduceRows",
      .domain = "ai.weir",
      .doc =
          "rows' = this rank's rows of the sum of acc over the ranks of `group`, by the tree of TreeReduceGradient: the same bits\n"
          "acc [R,...] float32, which is spent; rows [R_r,...], overwritten; staging that one such node hands to the next, or absent.\n"
          "Outputs rows', staging. Attributes: group, ranks (its size), staging (elements), event. A GPU sums beside what follows: rows' and\n"
          "acc are free after JoinBeside of the same event. C1 ranks >= 1; C2 staging >= 2 ranks; C3 rows are a rank's share.\n"
          "Cost on W ranks: N(W-1)/W flop and 4N(W-1)/W bytes each way.",
      .min_inputs = 2,
      .max_inputs = 3,
      .max_outputs = 2,
      .infer = InferReduceRows,
      WEIR_REFERENCE(ReduceRowsReference),
      .cost = ReduceRowsCost,
      .cases = [] {
        return std::vector<OpCase>{{"alone", {{.dims = {5, 7}}, {.dims = {5, 7}, .differentiable = false}}, {}, 1, false},
                                   {"empty", {{.dims = {0, 7}}, {.dims = {0, 7}, .differentiable = false}}, {}, 1, false}};
      },
      .aliases = {{0, 1}, {1, 2}},
      .has_side_effect = true};
  return schema;
}

const OpSchema& TreeReduceJoinSchema() {
  static const OpSchema schema{
      .name = "TreeReduceJoin",
      .domain = "ai.weir",
      .doc =
          "acc' = acc, in place, once every TreeReduceGradient that was begun beside other work is over\n"
          "inputs acc, the last of their staging; attributes group, ranks.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferTreeReduceJoin,
      .aliases = {{0, 0}},
      .has_side_effect = true};
  return schema;
}

}  // namespace weir
