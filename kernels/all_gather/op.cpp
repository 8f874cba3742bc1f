#include "graph/op_schema.h"
#include "graph/vocabulary_share.h"
#include "backend/communicator.h"
#include "kernels/all_gather/gather.h"
#include "kernels/common/copy_kernel.h"

namespace weir {
namespace {

void InferAllGatherRows(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  const Attributes& a = c.node.attributes;
  const int64_t ranks = a.Int("ranks", 1), rows = a.Int("rows"), unit = a.Int("unit", 1);
  if (ranks < 1 || rows < 0 || unit < 1) c.Fail("C1: ranks and unit must be at least 1, rows not negative");
  if (!c.HasShape(0)) return;
  Shape shape = c.shape(0);
  bool share = false;
  for (int64_t member = 0; member < ranks && !share && !shape.empty() && shape[0].IsConstant(); ++member) {
    share = shape[0].Constant() == VocabularyShare(rows, unit, ranks, member).size();
  }
  if (!share) c.Fail(StrCat("C2: x ", ToString(shape), " is no rank's share of ", rows, " rows over ", ranks, " ranks"));
  shape[0] = rows;
  c.SetOutput(0, c.in(0)->dtype, shape);
}

// One rank alone holds everything.
template <class T>
void AllGatherRowsReference(Eval<T>& e) {
  WEIR_CHECK(e.attributes.Int("ranks", 1) == 1, ErrorCode::kUnsupportedOp, "a gather from several ranks has no meaning on one");
  e.out[0] = e.x(0);
}

Cost AllGatherRowsCost(const Node& n) {
  return {.flops = 0, .bytes = 2 * static_cast<double>(BytesOf(n.out(0)->dtype, NumElements(ToDims(n.out(0)->shape))))};
}

}  // namespace

void LaunchAllGatherRows(KernelContext& c, void (*copy)(KernelContext&), Communicator* communicator) {
  const int64_t ranks = c.attributes().Int("ranks", 1);
  if (ranks == 1) return copy(c);
  if (communicator == nullptr) communicator = c.communicator;
  WEIR_CHECK(communicator != nullptr && communicator->size() == ranks, ErrorCode::kInternal, "rows of ", ranks, " ranks are gathered on ",
             communicator ? communicator->size() : 1);
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  const int64_t unit = c.attributes().Int("unit", 1), rows = y.dims[0], row_bytes = rows == 0 ? 0 : y.size_bytes() / rows;
  std::vector<int64_t> bytes;
  for (int64_t member = 0; member < ranks; ++member) bytes.push_back(VocabularyShare(rows, unit, ranks, member).size() * row_bytes);
  communicator->AllGatherV({x.bytes, static_cast<size_t>(x.size_bytes())}, {y.bytes, static_cast<size_t>(y.size_bytes())}, bytes,
                           {c.node.op(), c.node.in(0)->name});
}

const OpSchema& AllGatherRowsSchema() {
  static const OpSchema schema{
      .name = "AllGatherRows",
      .domain = "ai.weir",
      .doc = R"(y = the ranks' x one behind the other along axis 0
x [n,...] any type, n = this rank's share of `rows`: runs of units of `unit` rows (1), the first ranks hold one unit more; y [rows,...].
Attributes: group, ranks (its size, 1), rows, unit, event: with one, a GPU gathers beside what follows, and y is whole after JoinBeside of
the same event. Moves bytes: deterministic. C1 ranks, unit >= 1, rows >= 0. C2 x is a share.
Cost: y in, x out to every other rank.)",
      .infer = InferAllGatherRows,
      WEIR_REFERENCE(AllGatherRowsReference),
      .cost = AllGatherRowsCost,
      .cases = [] {
        return std::vector<OpCase>{{"alone", {{.dims = {5, 3}, .differentiable = false}}, {{"rows", int64_t{5}}}, 1, false},
                                   {"empty", {{.dims = {0, 3}, .differentiable = false}}, {{"rows", int64_t{0}}}, 1, false}};
      }};
  return schema;
}

const Kernel& AllGatherRowsCpuKernel() {
  static const Kernel kernel{.launch = [](KernelContext& c) { LaunchAllGatherRows(c, LaunchCopy); }, .unsupported = RefusePacked};
  return kernel;
}

}  // namespace weir
