#include "graph/gradient.h"
#include "graph/op_schema.h"
#include "kernels/mat_mul/reference.h"

namespace weir {
namespace {

void InferMatMul(InferContext& c) {
  if (!c.HasShape(0) || !c.HasShape(1)) return c.SetDType(0, c.in(0)->dtype);
  const Shape &a = c.shape(0), &b = c.shape(1);
  const std::string both = StrCat(ToString(a), " and ", ToString(b));
  if (a.empty() || b.empty()) c.Fail(StrCat("operands ", both, " must have at least one axis"));
  const Dim &a_inner = a.back(), &b_inner = b.size() > 1 ? b[b.size() - 2] : b[0];
  if (a_inner.IsConstant() && b_inner.IsConstant() && !(a_inner == b_inner)) {
    c.Fail(StrCat("inner sizes of ", both, " differ"));
  }
  const auto batch_of = [](const Shape& s) {
    return s.size() > 2 ? Shape(s.begin(), s.end() - 2) : Shape{};
  };
  auto y = Broadcast(batch_of(a), batch_of(b));
  if (!y.has_value()) c.Fail(StrCat("batch axes of ", both, " do not broadcast"));
  if (a.size() > 1) y->push_back(a[a.size() - 2]);
  if (b.size() > 1) y->push_back(b.back());
  c.SetOutput(0, c.in(0)->dtype, std::move(*y));
}

void InferMatMulGradient(InferContext& c) {
  const int64_t input = c.node.attributes.Int("input");
  if (input != 0 && input != 1) c.Fail(StrCat("attribute input is ", input, ", expected 0 or 1"));
  c.SetOutput(0, c.in(0)->dtype, c.shape(static_cast<size_t>(input)));
}

void MatMulGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr) return;
  for (int64_t input : {0, 1}) {
    const auto i = static_cast<size_t>(input);
    if (!g.Needs(i)) continue;
    g.Add(i, g.builder.Op("MatMulGradient", {g.in(0), g.in(1), dy}, {{"input", input}}));
  }
}

std::vector<OpCase> MatMulCases() {
  return {{"matrices", {{.dims = {5, 7}}, {.dims = {7, 9}}}},
          {"odd", {{.dims = {13, 67}}, {.dims = {67, 35}}}},
          {"flat_batch", {{.dims = {2, 3, 7}}, {.dims = {7, 9}}}},
          {"batched", {{.dims = {2, 3, 4, 7}}, {.dims = {2, 3, 7, 5}}}},
          {"broadcast", {{.dims = {2, 1, 4, 7}}, {.dims = {3, 7, 5}}}},
          {"broadcast_left", {{.dims = {4, 7}}, {.dims = {3, 7, 5}}}},
          {"vector_left", {{.dims = {7}}, {.dims = {3, 7, 5}}}},
          {"vector_right", {{.dims = {3, 4, 7}}, {.dims = {7}}}},
          {"vectors", {{.dims = {7}}, {.dims = {7}}}},
          {"no_inner", {{.dims = {3, 0}}, {.dims = {0, 4}}}},
          {"no_batch", {{.dims = {0, 3, 2}}, {.dims = {2, 4}}}}};
}

Cost MatMulCost(const Node& n) {
  const MatMulGeometry g = MakeMatMulGeometry(ToDims(n.in(0)->shape), ToDims(n.in(1)->shape));
  const double m = static_cast<double>(g.m), k = static_cast<double>(g.k);
  const double width = static_cast<double>(g.n), batches = static_cast<double>(g.batches);
  return {2 * batches * m * width * k, 4 * batches * (m * k + k * width + m * width)};
}

}  // namespace

const OpSchema& MatMulSchema() {
  static const OpSchema schema{.name = "MatMul",
                               .domain = "",
                               .doc =
                                   "y = a b: NumPy matmul, batch axes broadcast; a 1-D operand is "
                                   "a row (left) or a column (right)\n"
                                   "whose axis is dropped from y. a, b, y: float.\n"
                                   "Float32 in blocks of 256 over k, each a fused-multiply-add "
                                   "chain from zero, left-folded. A row\n"
                                   "of y has the same bits whatever the other rows. Cost: 2BMNK "
                                   "flop.  Source: ONNX MatMul-13.",
                               .min_inputs = 2,
                               .max_inputs = 2,
                               .infer = InferMatMul,
                               WEIR_REFERENCE(MatMulReference),
                               .gradient = MatMulGradient,
                               .cost = MatMulCost,
                               .cases = MatMulCases};
  return schema;
}

const OpSchema& MatMulGradientSchema() {
  static const OpSchema schema{.name = "MatMulGradient",
                               .domain = "ai.weir",
                               .doc =
                                   "input = 0: da = dy b^T;  input = 1: db = a^T dy; summed over "
                                   "the batches that share the operand\n"
                                   "inputs a, b, dy of a MatMul; output like a or b. Each product "
                                   "as in MatMul; batches that share\n"
                                   "the operand fold from the left in order, except that the "
                                   "batches over one matrix b count as\n"
                                   "rows of one product. Deterministic.",
                               .min_inputs = 3,
                               .max_inputs = 3,
                               .infer = InferMatMulGradient,
                               WEIR_REFERENCE(MatMulGradientReference),
                               .cost = MatMulCost};
  return schema;
}

}  // namespace weir
