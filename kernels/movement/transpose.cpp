#include "kernels/common/infer.h"

namespace weir {
namespace {

std::vector<int64_t> PermOf(const Attributes& attributes, int64_t rank) {
  std::vector<int64_t> perm = attributes.Ints("perm");
  if (!attributes.Has("perm")) {
    for (int64_t i = rank; i-- > 0;) perm.push_back(i);
  }
  WEIR_CHECK(static_cast<int64_t>(perm.size()) == rank, ErrorCode::kInvalidShape, "perm ",
             ToString(perm), " does not fit an input of rank ", rank);
  return NormalizeAxes(perm, rank);
}

IndexMap TransposeMap(const Dims& x, const std::vector<int64_t>& perm) {
  const Dims strides = Strides(x);
  Dims dims;
  for (const int64_t axis : perm) dims.push_back(x[static_cast<size_t>(axis)]);
  return MakeIndexMap(dims, [&](const Dims& at) {
    int64_t from = 0;
    for (size_t i = 0; i < at.size(); ++i) from += at[i] * strides[static_cast<size_t>(perm[i])];
    return from;
  });
}

void InferTranspose(InferContext& c) {
  if (!c.HasShape(0)) {
    const auto perm = c.node.attributes.Ints("perm");
    return SetUnknown(c, c.in(0)->dtype, perm.empty() ? -1 : static_cast<int64_t>(perm.size()));
  }
  const Shape& x = c.shape(0);
  const auto perm = PermOf(c.node.attributes, Rank(x));
  Shape out;
  for (const int64_t axis : perm) out.push_back(x[static_cast<size_t>(axis)]);
  c.SetOutput(0, c.in(0)->dtype, std::move(out));
  if (CarriesContent(c)) MapContent(c, TransposeMap(ToDims(x), perm));
}

template <class T>
void TransposeReference(Eval<T>& e) {
  const Dims& x = e.x(0).dims;
  e.out[0] = Take(e.x(0), TransposeMap(x, PermOf(e.attributes, Rank(x))));
}

void TransposeGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  const auto perm = PermOf(g.node.attributes, Rank(dy->shape));
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i)
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  g.Add(0, g.builder.Op("Transpose", {dy}, {{"perm", inverse}}));
}

std::vector<OpCase> TransposeCases() {
  using Perm = std::vector<int64_t>;
  return {{"default", {{.dims = {2, 3, 5}}}},
          {"matrix", {{.dims = {37, 65}}}, {{"perm", Perm{1, 0}}}},
          {"heads", {{.dims = {2, 7, 3, 16}}}, {{"perm", Perm{0, 2, 1, 3}}}},
          {"cycle", {{.dims = {2, 3, 1, 5, 4}}}, {{"perm", Perm{4, 0, 3, 1, 2}}}},
          {"identity", {{.dims = {3, 5}}}, {{"perm", Perm{0, 1}}}},
          {"scalar", {{.dims = {}}}},
          {"empty", {{.dims = {3, 0, 2}}}, {{"perm", Perm{2, 0, 1}}}},
          {"ints",
           {{.kind = CaseInput::Kind::kInts, .dims = {2, 3}, .ints = {1, 2, 3, 4, 5, 6}}},
           {},
           1,
           false}};
}

}  // namespace

const OpSchema& TransposeSchema() {
  static const OpSchema schema{
      .name = "Transpose",
      .doc =
          "y[i_0, .., i_r] = x with axis perm[k] of x as axis k of y; perm defaults to reversed\n"
          "axes.\n"
          "Cost: 0 flop, 2 N sizeof(dtype) bytes.  Source: ONNX Transpose-21.",
      .infer = InferTranspose,
      WEIR_REFERENCE(TransposeReference),
      .gradient = TransposeGradient,
      .cases = TransposeCases,
  };
  return schema;
}

}  // namespace weir
