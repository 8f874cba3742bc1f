#pragma once
#include <cmath>
#include <complex>
#include <optional>
#include <type_traits>

#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"

namespace weir {

enum class LossReduction { kNone, kSum, kMean };
LossReduction ReductionOf(const Attributes& attributes);  // throws InvalidModel when unknown

// float32 sums over a whole batch run in float64.
template <class T>
using LossSum = std::conditional_t<std::is_same_v<T, float>, double, T>;

// loss_i = -w[t_i] * logp[i, t_i], 0 where t_i = ignore_index; mean divides by the sum of the
// w[t_i]. logp [N, C, d...], targets [N, d...], weights? [C].
template <class T>
Array<T> PickLoss(const Eval<T>& e, const Array<T>& logp) {
  const Array<T>& target = Integers(e, 1);
  WEIR_CHECK(logp.dims.size() >= 2, ErrorCode::kInvalidShape, "scores ", ToString(logp.dims),
             ", expected [N,C,...]");
  const int64_t classes = logp.dims[1];
  Dims expected = logp.dims;
  expected.erase(expected.begin() + 1);
  WEIR_CHECK(target.dims == expected, ErrorCode::kInvalidShape, "labels ", ToString(target.dims),
             ", expected ", ToString(expected));
  WEIR_CHECK(!e.has(2) || e.floats(2).dims == Dims{classes}, ErrorCode::kInvalidShape,
             "weights must be [", classes, "]");
  std::optional<int64_t> ignore;
  if (e.attributes.Has("ignore_index")) ignore = e.attributes.Int("ignore_index", 0);
  int64_t inner = 1;
  for (size_t k = 2; k < logp.dims.size(); ++k) inner *= logp.dims[k];
  const LossReduction reduction = ReductionOf(e.attributes);
  Array<T> each = Array<T>::Floats(expected);
  LossSum<T> sum{}, weight_sum{};
  for (size_t k = 0; k < target.i.size(); ++k) {
    const int64_t t = target.i[k];
    if (ignore && t == *ignore) continue;
    WEIR_CHECK(t >= 0 && t < classes, ErrorCode::kInvalidArgument, "label ", t, " at position ", k,
               " is outside [0,", classes, ")");
    const auto i = static_cast<int64_t>(k);
    const T w = e.has(2) ? e.floats(2).f[t] : T(1);
    each.f[k] = -w * logp.f[(i / inner * classes + t) * inner + i % inner];
    sum += each.f[k];
    weight_sum += w;
  }
  if (reduction == LossReduction::kNone) return each;
  return Array<T>::Floats(
      {}, static_cast<T>(reduction == LossReduction::kMean ? sum / weight_sum : sum));
}

template <class T>
void NegativeLogLikelihoodLossReference(Eval<T>& e) {
  e.out[0] = PickLoss(e, e.floats(0));
}

template <class T>
void SoftmaxCrossEntropyLossReference(Eval<T>& e) {
  Array<T> logp = e.floats(0);
  WEIR_CHECK(logp.dims.size() >= 2, ErrorCode::kInvalidShape, "scores ", ToString(logp.dims),
             ", expected [N,C,...]");
  const int64_t classes = logp.dims[1];
  int64_t inner = 1;
  for (size_t k = 2; k < logp.dims.size(); ++k) inner *= logp.dims[k];
  for (int64_t row = 0; row < logp.dims[0] * inner; ++row) {
    T* x = logp.f.data() + row / inner * classes * inner + row % inner;
    double top = -INFINITY;
    for (int64_t j = 0; j < classes; ++j) top = std::max(top, Real(x[j * inner]));
    T sum{};
    for (int64_t j = 0; j < classes; ++j) sum += std::exp(x[j * inner] - T(top));
    for (int64_t j = 0; j < classes; ++j) x[j * inner] -= T(top) + std::log(sum);
  }
  e.out[0] = PickLoss(e, logp);
  if (e.out.size() > 1) e.out[1] = std::move(logp);
}

}  // namespace weir
