#include <algorithm>
#include <numeric>

#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/order/order.h"

namespace weir {

Shape TopKShape(Shape x, int64_t axis, const Dim& k) {
  Dim& size = x[static_cast<size_t>(NormalizeAxis(axis, Rank(x)))];
  WEIR_CHECK(!k.IsConstant() ||
                 (k.Constant() >= 0 && (!size.IsConstant() || k.Constant() <= size.Constant())),
             ErrorCode::kInvalidShape, "k = ", ToString(k), " is not within [0, ", ToString(size),
             "]");
  size = k;
  return x;
}

namespace {

int64_t AxisOf(const Attributes& attributes) { return attributes.Int("axis", -1); }

void InferTopK(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  c.SetDType(1, DType::kInt64);
  if (!c.HasShape(0)) return;
  const auto k = Content(c, 1);
  if (k && k->size() != 1) c.Fail(StrCat("k must hold one element, got ", k->size()));
  const Shape out = TopKShape(c.shape(0), AxisOf(c.node.attributes), k ? (*k)[0] : Dim::Unknown());
  c.SetOutput(0, c.in(0)->dtype, out);
  c.SetOutput(1, DType::kInt64, out);
}

template <class T>
void TopKReference(Eval<T>& e) {
  const Array<T>& x = e.x(0);
  const bool largest = e.attributes.Int("largest", 1) != 0;
  const int64_t k = IntOf(e, 1), axis = AxisOf(e.attributes);
  Array<T> ids = Array<T>::Ints(ToDims(TopKShape(ToShape(x.dims), axis, k)));
  IndexMap map{ids.dims, std::vector<int64_t>(ids.i.size())};
  const AxisView view = ViewAxis(x.dims, axis);
  const auto value = [&](int64_t at) {
    return x.is_float() ? Real(x.f[at]) : static_cast<double>(x.i[at]);
  };
  std::vector<int64_t> order(static_cast<size_t>(view.size));
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      const auto at = [&](int64_t id) { return (o * view.size + id) * view.inner + n; };
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return largest ? Larger(value(at(a)), value(at(b))) : Smaller(value(at(a)), value(at(b)));
      });
      for (int64_t r = 0; r < k; ++r) {
        const auto to = static_cast<size_t>((o * k + r) * view.inner + n);
        ids.i[to] = order[static_cast<size_t>(r)];
        map.source[to] = at(ids.i[to]);
      }
    }
  }
  e.out[0] = Take(x, map);
  if (e.out.size() > 1) e.out[1] = std::move(ids);
}

void TopKGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  WEIR_CHECK(g.out(1) != nullptr, ErrorCode::kInvalidModel,
             "the gradient of the values needs the ids: output 1 is missing");
  g.Add(0, g.builder.Op("GatherElementsGradient", {dy, g.out(1), ShapeOf(g.builder, g.in(0))},
                        {{"axis", AxisOf(g.node.attributes)}}));
}

std::vector<OpCase> TopKCases() {
  const CaseInput ties{.kind = CaseInput::Kind::kFloats,
                       .dims = {2, 6},
                       .floats = {1, 3, 3, 0, 3, 1, 0, 0, 0, 0, 0, 0}};
  // RTD-28: a number of experts that no vector width divides, all scores below those of empty lanes.
  const CaseInput negative{.kind = CaseInput::Kind::kFloats,
                           .dims = {2, 5},
                           .floats = {-8.5, -8.25, -9, -8.75, -8.125, -9, -8.5, -8.5, -8.875, -9}};
  return {{"all_negative", {negative, IntsInput({2})}, {}, 2},
          {"experts", {{.dims = {7, 8}}, IntsInput({2})}, {}, 2},
          {"ties", {ties, IntsInput({4})}, {}, 2},
          {"smallest_ties", {ties, IntsInput({3})}, {{"largest", int64_t{0}}}, 2},
          {"unsorted", {{.dims = {3, 9}}, IntsInput({5})}, {{"sorted", int64_t{0}}}, 2},
          {"first_axis", {{.dims = {5, 3}}, IntsInput({2})}, {{"axis", int64_t{0}}}, 2},
          {"middle_axis", {{.dims = {2, 5, 3}}, IntsInput({5})}, {{"axis", int64_t{1}}}, 2},
          {"many", {{.dims = {3, 100}}, IntsInput({70})}, {}, 2},
          {"none", {{.dims = {2, 3}}, IntsInput({0})}, {}, 2},
          {"no_rows", {{.dims = {0, 3}}, IntsInput({2})}, {}, 2},
          {"ints", {IntsInput({5, 1, 7, 7}), IntsInput({3})}, {}, 2, false}};
}

}  // namespace

const OpSchema& TopKSchema() {
  static const OpSchema schema{
      .name = "TopK",
      .doc =
          "values, ids = the k largest (largest = 0: smallest) elements along axis (-1), in\n"
          "order, ties by lowest id, NaN above every number. sorted = 0 gives the same sorted\n"
          "result.\n"
          "x: any; k: int64 [1], 0 <= k <= size; ids int64. Deterministic.  Source: ONNX TopK-11.",
      .min_inputs = 2,
      .max_inputs = 2,
      .min_outputs = 1,
      .max_outputs = 2,
      .infer = InferTopK,
      WEIR_REFERENCE(TopKReference),
      .gradient = TopKGradient,
      .cases = TopKCases,
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

}  // namespace weir
