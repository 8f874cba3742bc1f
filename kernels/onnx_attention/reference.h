#pragma once
#include <cmath>
#include <complex>
#include <limits>

#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"
#include "kernels/elementwise/broadcast.h"

namespace weir {

// [batch, heads, length, width] whether stored as that (4-D) or as [batch, length, heads * width]
// (3-D).
struct HeadView {
  int64_t batch = 0, heads = 0, length = 0, width = 0;
  bool packed = false;
  int64_t At(int64_t b, int64_t h, int64_t s) const {
    return (packed ? (b * length + s) * heads + h : (b * heads + h) * length + s) * width;
  }
};
// `heads` is read for 3-D dims only. Throws InvalidShape when dims do not fit.
HeadView ViewHeads(const Dims& dims, int64_t heads, const char* what);

// past (4-D) followed by `now` along the length, as a 4-D array.
template <class T>
Array<T> AppendToPast(const Array<T>* past, const Array<T>& now, const HeadView& view) {
  const int64_t before = past == nullptr ? 0 : ViewHeads(past->dims, 0, "past").length;
  Array<T> all = Array<T>::Floats({view.batch, view.heads, before + view.length, view.width});
  all.dtype = now.dtype;
  const HeadView target = ViewHeads(all.dims, 0, "present");
  for (int64_t b = 0; b < view.batch; ++b) {
    for (int64_t h = 0; h < view.heads; ++h) {
      for (int64_t s = 0; s < before + view.length; ++s) {
        const T* from = s < before
                            ? past->f.data() + ((b * view.heads + h) * before + s) * view.width
                            : now.f.data() + view.At(b, h, s - before);
        std::copy(from, from + view.width, all.f.data() + target.At(b, h, s));
      }
    }
  }
  return all;
}

// y = softmax(softcap(scale q k^T) + mask) v. is_causal: query i of the block sees keys j <= i +
// past length. A row with every key masked is 0. Softcap comes before the mask.
template <class T>
void OnnxAttentionReference(Eval<T>& e) {
  const Attributes& a = e.attributes;
  WEIR_CHECK(!e.has(6) && e.out.size() <= 3, ErrorCode::kUnsupportedOp,
             "Attention: nonpad_kv_seqlen and qk_matmul_output are not supported");
  const HeadView q = ViewHeads(e.floats(0).dims, a.Int("q_num_heads", 0), "Q");
  const HeadView new_k = ViewHeads(e.floats(1).dims, a.Int("kv_num_heads", 0), "K");
  const HeadView new_v = ViewHeads(e.floats(2).dims, a.Int("kv_num_heads", 0), "V");
  const Array<T> keys = AppendToPast(e.has(4) ? &e.floats(4) : nullptr, e.floats(1), new_k);
  const Array<T> values = AppendToPast(e.has(5) ? &e.floats(5) : nullptr, e.floats(2), new_v);
  const HeadView k = ViewHeads(keys.dims, 0, "K"), v = ViewHeads(values.dims, 0, "V");
  WEIR_CHECK(q.batch == k.batch && k.batch == v.batch && k.heads == v.heads &&
                 k.length == v.length && q.width == k.width && k.heads > 0 &&
                 q.heads % k.heads == 0,
             ErrorCode::kInvalidShape, "Attention: Q ", ToString(e.floats(0).dims), ", K ",
             ToString(keys.dims), ", V ", ToString(values.dims), " do not fit together");
  const T scale(static_cast<float>(a.Float("scale", 1 / std::sqrt(static_cast<double>(q.width)))));
  const T softcap(static_cast<float>(a.Float("softcap", 0)));
  const bool causal = a.Int("is_causal", 0) != 0;
  const int64_t left = a.Int("left_window_size", -1), right = a.Int("right_window_size", -1);
  const int64_t past = k.length - new_k.length;
  std::vector<int64_t> mask_index;
  if (e.has(3)) {
    const Dims full{q.batch, q.heads, q.length, k.length};
    WEIR_CHECK(BroadcastDims(e.x(3).dims, full) == full, ErrorCode::kInvalidShape,
               "Attention: mask ", ToString(e.x(3).dims), " does not broadcast to ",
               ToString(full));
    mask_index = BroadcastIndex(e.x(3).dims, full);
  }
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Array<T> y = Array<T>::Floats(q.packed ? Dims{q.batch, q.length, q.heads * v.width}
                                         : Dims{q.batch, q.heads, q.length, v.width});
  y.dtype = e.floats(0).dtype;
  const HeadView out{q.batch, q.heads, q.length, v.width, q.packed};
  std::vector<T> score(static_cast<size_t>(k.length));
  for (int64_t row = 0; row < q.batch * q.heads * q.length; ++row) {
    const int64_t b = row / (q.heads * q.length), h = row / q.length % q.heads, i = row % q.length;
    const int64_t kv = h / (q.heads / k.heads);
    double top = -kInf;
    for (int64_t j = 0; j < k.length; ++j) {
      const int64_t ahead = j - (i + past);
      const bool hidden =
          (causal && ahead > 0) || (left >= 0 && -ahead > left) || (right >= 0 && ahead > right);
      T s{};
      for (int64_t d = 0; d < q.width; ++d)
        s += e.floats(0).f[q.At(b, h, i) + d] * keys.f[k.At(b, kv, j) + d];
      s *= scale;
      if (Real(softcap) > 0) s = softcap * std::tanh(s / softcap);
      if (e.has(3)) {
        const auto at = static_cast<size_t>(mask_index[static_cast<size_t>(row * k.length + j)]);
        s = e.x(3).is_float() ? s + e.x(3).f[at] : e.x(3).i[at] != 0 ? s : T(-kInf);
      }
      score[j] = hidden ? T(-kInf) : s;
      top = std::max(top, Real(score[j]));
    }
    if (top == -kInf) continue;
    T sum{};
    for (T& s : score) sum += s = std::exp(s - T(top));
    for (int64_t j = 0; j < k.length; ++j) {
      for (int64_t d = 0; d < v.width; ++d) {
        y.f[out.At(b, h, i) + d] += score[j] / sum * values.f[v.At(b, kv, j) + d];
      }
    }
  }
  e.out[0] = std::move(y);
  if (e.out.size() > 1) e.out[1] = keys;
  if (e.out.size() > 2) e.out[2] = values;
}

// Rotates the first d = 2 * caches' width channels of every head; halves (i, i + d/2) or pairs (2i,
// 2i+1).
template <class T>
void OnnxRotaryEmbeddingReference(Eval<T>& e) {
  const Array<T>&x = e.floats(0), &cos = e.floats(1), &sin = e.floats(2);
  const HeadView view = ViewHeads(x.dims, e.attributes.Int("num_heads", 0), "X");
  const bool interleaved = e.attributes.Int("interleaved", 0) != 0;
  const int64_t given = e.attributes.Int("rotary_embedding_dim", 0),
                d = given > 0 ? given : view.width;
  const int64_t half = d / 2;
  const Dims expected = e.has(3) ? Dims{cos.dims.empty() ? 0 : cos.dims[0], half}
                                 : Dims{view.batch, view.length, half};
  WEIR_CHECK(d <= view.width && d % 2 == 0 && cos.dims == expected && sin.dims == expected,
             ErrorCode::kInvalidShape, "RotaryEmbedding: X ", ToString(x.dims), ", cos ",
             ToString(cos.dims), ", sin ", ToString(sin.dims), ", expected caches ",
             ToString(expected));
  WEIR_CHECK(!e.has(3) || Integers(e, 3).dims == Dims({view.batch, view.length}), ErrorCode::kInvalidShape,
             "RotaryEmbedding: position_ids ", ToString(Integers(e, 3).dims),
             ", expected [batch,sequence]");
  e.out[0] = x;
  for (int64_t row = 0; row < view.batch * view.length; ++row) {
    const int64_t position = e.has(3) ? Integers(e, 3).i[row] : row;
    WEIR_CHECK(position >= 0 && position < cos.elements() / std::max<int64_t>(1, half),
               ErrorCode::kInvalidArgument, "RotaryEmbedding: position ", position,
               " is outside the caches ", ToString(cos.dims));
    for (int64_t h = 0; h < view.heads; ++h) {
      const int64_t base = view.At(row / view.length, h, row % view.length);
      for (int64_t i = 0; i < half; ++i) {
        const int64_t first = base + (interleaved ? 2 * i : i),
                      second = interleaved ? first + 1 : first + half;
        const T c = cos.f[position * half + i], s = sin.f[position * half + i];
        e.out[0].f[first] = x.f[first] * c - x.f[second] * s;
        e.out[0].f[second] = x.f[second] * c + x.f[first] * s;
      }
    }
  }
}

}  // namespace weir
