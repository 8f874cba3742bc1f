#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/order/order.h"

namespace weir {
namespace {

void InferCumSum(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (!c.HasShape(0)) return;
  const auto axis = ConstantContent(c, 1);
  if (axis && axis->size() != 1) c.Fail(StrCat("axis must hold one element, got ", axis->size()));
  if (axis) NormalizeAxis((*axis)[0], Rank(c.shape(0)));
  c.SetOutput(0, c.in(0)->dtype, c.shape(0));
}

template <class E>
void Accumulate(const std::vector<E>& x, std::vector<E>& y, const AxisView& view, bool exclusive,
                bool reverse) {
  for (int64_t k = 0; k < view.outer * view.inner; ++k) {
    E sum{};
    for (int64_t step = 0; step < view.size; ++step) {
      const int64_t id = reverse ? view.size - 1 - step : step;
      const auto at =
          static_cast<size_t>((k / view.inner * view.size + id) * view.inner + k % view.inner);
      if (exclusive) y[at] = sum;
      if constexpr (std::is_same_v<E, int64_t>) {
        sum = static_cast<int64_t>(static_cast<uint64_t>(sum) +
                                   static_cast<uint64_t>(x[at]));  // wraps
      } else {
        sum += x[at];
      }
      if (!exclusive) y[at] = sum;
    }
  }
}

template <class T>
void CumSumReference(Eval<T>& e) {
  const Array<T>& x = e.x(0);
  const AxisView view = ViewAxis(x.dims, IntOf(e, 1));
  const bool exclusive = e.attributes.Int("exclusive", 0) != 0;
  const bool reverse = e.attributes.Int("reverse", 0) != 0;
  e.out[0] = x;
  if (x.is_float()) {
    Accumulate(x.f, e.out[0].f, view, exclusive, reverse);
  } else {
    Accumulate(x.i, e.out[0].i, view, exclusive, reverse);
  }
}

void CumSumGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  Attributes attributes = g.node.attributes;
  attributes.Set("reverse", int64_t{1} - attributes.Int("reverse", 0));
  g.Add(0, g.builder.Op("CumSum", {dy, g.in(1)}, attributes));
}

}  // namespace

const OpSchema& CumSumSchema() {
  static const OpSchema schema{
      .name = "CumSum",
      .doc =
          "y[i] = sum of x[j] along axis for j <= i (exclusive: j < i; reverse: from the end).\n"
          "x: any; axis: int scalar. Sums in order, integers wrap.  Source: ONNX CumSum-14.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferCumSum,
      WEIR_REFERENCE(CumSumReference),
      .gradient = CumSumGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"last", {{.dims = {3, 7}}, IntInput(-1)}},
                {"first", {{.dims = {4, 3}}, IntInput(0)}},
                {"exclusive", {{.dims = {2, 5, 3}}, IntInput(1)}, {{"exclusive", int64_t{1}}}},
                {"reverse", {{.dims = {2, 5}}, IntInput(1)}, {{"reverse", int64_t{1}}}},
                {"both",
                 {{.dims = {5}}, IntInput(0)},
                 {{"exclusive", int64_t{1}}, {"reverse", int64_t{1}}}},
                {"empty", {{.dims = {2, 0}}, IntInput(1)}},
                {"ints", {IntsInput({1, 2, 3}), IntInput(0)}, {}, 1, false}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

WEIR_REFERENCE_CPU_KERNEL(CumSum)

}  // namespace weir
