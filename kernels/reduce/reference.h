#pragma once
#include <cmath>
#include <complex>
#include <limits>

#include "graph/eval.h"

namespace weir {

// Which axes of a tensor of `rank` an ONNX reduction reduces. `given` is null without an axes
// input. Throws InvalidShape on an axis out of range or given twice.
std::vector<bool> ReducedAxes(const Attributes& attributes, size_t rank,
                              const std::vector<int64_t>* given);

// dims after the reduction; `slot` receives, for every input element, the index of its output
// element.
Dims ReducedDims(const Dims& dims, const std::vector<bool>& reduced, bool keepdims,
                 std::vector<int64_t>* slot);

enum class Reduction { kSum, kMean, kMax, kMin, kProd, kL2, kSumSquare, kLogSumExp };

// The maximum of no floats is -inf, the minimum inf.
template <Reduction kind, class T>
void ReduceReference(Eval<T>& e) {
  const Array<T>& x = e.x(0);
  const auto reduced = ReducedAxes(e.attributes, x.dims.size(), e.has(1) ? &e.x(1).i : nullptr);
  std::vector<int64_t> slot;
  const Dims dims = ReducedDims(x.dims, reduced, e.attributes.Int("keepdims", 1) != 0, &slot);
  Array<T> y = x.is_float() ? Array<T>::Floats(dims) : Array<T>::Ints(dims, x.dtype);
  y.dtype = x.dtype;
  const int64_t count = y.elements() == 0 ? 0 : x.elements() / y.elements();
  const auto fold = [&](auto& out, const auto& in, auto combine, auto start) {
    std::fill(out.begin(), out.end(), start);
    for (size_t k = 0; k < in.size(); ++k) out[slot[k]] = combine(out[slot[k]], in[k]);
  };
  constexpr bool extreme = kind == Reduction::kMax || kind == Reduction::kMin;
  WEIR_CHECK(!extreme || x.is_float() || count > 0 || y.elements() == 0, ErrorCode::kInvalidModel,
             "max or min of integers over an empty axis of ", ToString(x.dims));
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const auto pick = [](const auto& a, const auto& b, bool is_max) {
    if constexpr (std::is_same_v<std::decay_t<decltype(a)>, int64_t>) {
      return is_max ? std::max(a, b) : std::min(a, b);
    } else {
      return std::isnan(Real(a)) || (is_max ? Real(a) > Real(b) : Real(a) < Real(b)) ? a : b;
    }
  };
  if constexpr (extreme) {
    constexpr bool is_max = kind == Reduction::kMax;
    const auto choose = [&](const auto& a, const auto& b) { return pick(a, b, is_max); };
    fold(y.f, x.f, choose, T(is_max ? -kInf : kInf));
    fold(y.i, x.i, choose,
         is_max ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max());
  } else if constexpr (kind == Reduction::kProd) {
    fold(
        y.f, x.f, [](const T& a, const T& b) { return a * b; }, T(1));
    fold(
        y.i, x.i,
        [](int64_t a, int64_t b) {
          return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
        },
        int64_t{1});
  } else if constexpr (kind == Reduction::kLogSumExp) {
    WEIR_CHECK(x.is_float(), ErrorCode::kInvalidModel, "floats expected, got ", DTypeName(x.dtype));
    Array<T> top = y;
    fold(
        top.f, x.f, [&](const T& a, const T& b) { return pick(a, b, true); }, T(-kInf));
    for (T& v : top.f) v = std::isfinite(Real(v)) ? T(Real(v)) : T(0);
    for (size_t k = 0; k < x.f.size(); ++k) y.f[slot[k]] += std::exp(x.f[k] - top.f[slot[k]]);
    for (size_t k = 0; k < y.f.size(); ++k) y.f[k] = std::log(y.f[k]) + top.f[k];
  } else {
    constexpr bool square = kind == Reduction::kL2 || kind == Reduction::kSumSquare;
    fold(
        y.f, x.f, [](const T& a, const T& b) { return a + (square ? b * b : b); }, T(0));
    fold(
        y.i, x.i,
        [](int64_t a, int64_t b) {
          const auto u = static_cast<uint64_t>(b);
          return static_cast<int64_t>(static_cast<uint64_t>(a) + (square ? u * u : u));
        },
        int64_t{0});
    if constexpr (kind == Reduction::kMean) {
      WEIR_CHECK(x.is_float() || count > 0 || y.elements() == 0, ErrorCode::kInvalidModel,
                 "mean of nothing");
      for (T& v : y.f) v /= T(static_cast<float>(count));
      for (int64_t& v : y.i) v /= count;
    }
    if constexpr (kind == Reduction::kL2) {
      for (T& v : y.f) v = std::sqrt(v);
      for (int64_t& v : y.i) v = static_cast<int64_t>(std::sqrt(static_cast<double>(v)));
    }
  }
  e.out[0] = std::move(y);
}

}  // namespace weir
