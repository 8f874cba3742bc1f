#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/order/order.h"

namespace weir {
namespace {

// The size along axis becomes 1, or goes.
Shape ArgShape(Shape x, const Attributes& attributes) {
  const auto at = x.begin() + NormalizeAxis(attributes.Int("axis", 0), Rank(x));
  WEIR_CHECK(!(*at == Dim(0)), ErrorCode::kInvalidShape, "the axis to search is empty in ",
             ToString(x));
  *at = 1;
  if (attributes.Int("keepdims", 1) == 0) x.erase(at);
  return x;
}

void InferArg(InferContext& c) {
  c.SetDType(0, DType::kInt64);
  if (c.HasShape(0)) c.SetOutput(0, DType::kInt64, ArgShape(c.shape(0), c.node.attributes));
}

template <class T>
void ArgReference(Eval<T>& e, bool (*better)(double, double)) {
  const Array<T>& x = e.x(0);
  const bool last = e.attributes.Int("select_last_index", 0) != 0;
  e.out[0] = Array<T>::Ints(ToDims(ArgShape(ToShape(x.dims), e.attributes)));
  const AxisView view = ViewAxis(x.dims, e.attributes.Int("axis", 0));
  for (int64_t k = 0; k < view.outer * view.inner; ++k) {
    const auto value = [&](int64_t id) {
      const int64_t at = (k / view.inner * view.size + id) * view.inner + k % view.inner;
      return x.is_float() ? Real(x.f[at]) : static_cast<double>(x.i[at]);
    };
    int64_t best = 0;
    for (int64_t id = 1; id < view.size; ++id) {
      if (last ? !better(value(best), value(id)) : better(value(id), value(best))) best = id;
    }
    e.out[0].i[k] = best;
  }
}

template <class T>
void ArgMaxReference(Eval<T>& e) {
  ArgReference(e, Larger);
}
template <class T>
void ArgMinReference(Eval<T>& e) {
  ArgReference(e, Smaller);
}

std::vector<OpCase> ArgCases() {
  const CaseInput ties{
      .kind = CaseInput::Kind::kFloats, .dims = {2, 4}, .floats = {1, 3, 3, 1, 0, 0, 0, 0}};
  return {{"first_axis", {{.dims = {5, 3}}}},
          {"last_axis", {{.dims = {2, 3, 7}}}, {{"axis", int64_t{-1}}, {"keepdims", int64_t{0}}}},
          {"ties", {ties}, {{"axis", int64_t{1}}}},
          {"last_tie", {ties}, {{"axis", int64_t{1}}, {"select_last_index", int64_t{1}}}},
          {"ints", {IntsInput({3, 1, 9, 1, 9})}},
          {"no_rows", {{.dims = {0, 3}}}, {{"axis", int64_t{1}}}}};
}

}  // namespace

#define ARG_SCHEMA(Name, which)                                                                   \
  const OpSchema& Name##Schema() {                                                                \
    static const OpSchema schema{                                                                 \
        .name = #Name,                                                                            \
        .doc =                                                                                    \
            "y = id of the " which                                                                \
            " element along axis (0): the first of equals, the last with\n"                       \
            "select_last_index = 1; NaN counts as above every number. The axis stays as size 1\n" \
            "unless keepdims = 0. y: int64.  Source: ONNX " #Name "-13.",                         \
        .infer = InferArg,                                                                        \
        WEIR_REFERENCE(Name##Reference),                                                          \
        .cases = ArgCases,                                                                        \
        .nondifferentiable_inputs = {0},                                                          \
    };                                                                                            \
    return schema;                                                                                \
  }
ARG_SCHEMA(ArgMax, "largest")
ARG_SCHEMA(ArgMin, "smallest")

WEIR_REFERENCE_CPU_KERNEL(ArgMax)
WEIR_REFERENCE_CPU_KERNEL(ArgMin)

}  // namespace weir
