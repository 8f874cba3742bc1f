#pragma once
#include "graph/shape.h"

namespace weir {

// True only when both are constants and unequal: what shape inference may reject.
inline bool Differ(const Dim& a, const Dim& b) {
  return a.IsConstant() && b.IsConstant() && a.Constant() != b.Constant();
}

}  // namespace weir
