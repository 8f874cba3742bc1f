#pragma once
#include "graph/eval.h"

namespace weir {

// Input k of an op that reads ids, labels or counts there; see Eval::floats.
template <class T>
const Array<T>& Integers(const Eval<T>& e, size_t k) {
  WEIR_CHECK(!e.x(k).is_float(), ErrorCode::kUnsupportedOp, "input ", k, " is ", DTypeName(e.x(k).dtype),
             "; expected integers");
  return e.x(k);
}

}  // namespace weir
