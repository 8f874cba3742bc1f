#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/common/reference_kernel.h"

namespace weir {
namespace {

// The count depends on the data: known only for known small integers.
void InferNonZero(InferContext& c) {
  if (!c.HasShape(0)) return SetUnknown(c, DType::kInt64, 2);
  Dim count;
  if (const auto values = ConstantContent(c, 0)) {
    count = static_cast<int64_t>(values->size()) - std::count(values->begin(), values->end(), 0);
  }
  c.SetOutput(0, DType::kInt64, {Rank(c.shape(0)), count});
}

template <class T>
void NonZeroReference(Eval<T>& e) {
  const Array<T>& x = e.x(0);
  std::vector<Dims> found;
  ForEachIndex(x.dims, [&](const Dims& at, int64_t k) {
    if (x.is_float() ? x.f[k] != T{} : x.i[k] != 0) found.push_back(at);
  });
  const auto count = static_cast<int64_t>(found.size());
  e.out[0] = Array<T>::Ints({Rank(x.dims), count});
  for (int64_t axis = 0; axis < Rank(x.dims); ++axis) {
    for (int64_t k = 0; k < count; ++k) e.out[0].i[axis * count + k] = found[k][axis];
  }
}

}  // namespace

const OpSchema& NonZeroSchema() {
  static const OpSchema schema{
      .name = "NonZero",
      .doc =
          "y[:, k] = index tuple of the k-th non-zero element of x in row-major order; y: int64\n"
          "[rank, n].\n"
          "Source: ONNX NonZero-13.",
      .infer = InferNonZero,
      WEIR_REFERENCE(NonZeroReference),
      .cases = []() -> std::vector<OpCase> {
        return {{"some", {IntsInput({0, 3, 0, -1})}},
                {"none", {IntsInput({0, 0})}},
                {"empty", {IntsInput({})}}};
      },
      .nondifferentiable_inputs = {0},
  };
  return schema;
}

WEIR_REFERENCE_CPU_KERNEL(NonZero)

}  // namespace weir
