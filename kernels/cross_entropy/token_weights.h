#pragma once
#include "graph/op_schema.h"
#include "kernels/common/dims.h"

namespace weir {

// What a token's loss counts for. A token of weight 0 is as one without a label: it counts for nothing, NaN logits included.
template <class T>
struct TokenWeights {
  const T* weights;  // nullptr: 1 each
  T operator[](int64_t token) const { return weights == nullptr ? T(1) : weights[token]; }
};

// That the optional input `weights` is float32 and shaped as `labels`.
inline void CheckTokenWeights(InferContext& c, size_t weights, size_t labels, const char* constraint) {
  if (c.in(weights) == nullptr || !c.HasShape(weights) || !c.HasShape(labels)) return;
  const Shape &own = c.shape(weights), &other = c.shape(labels);
  bool same = own.size() == other.size() && c.in(weights)->dtype == DType::kFloat32;
  for (size_t i = 0; same && i < own.size(); ++i) same = !Differ(own[i], other[i]);
  if (same) return;
  c.Fail(StrCat(constraint, ": weights ", DTypeName(c.in(weights)->dtype), ToString(own), " must be float32, shaped as labels ", ToString(other)));
}

}  // namespace weir
