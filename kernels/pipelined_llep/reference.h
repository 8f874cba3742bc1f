#pragma once
#include "kernels/experts/reference.h"

namespace weir {

// One rank's view: Experts, and its own route counts [1, leaves, experts].
template <class T>
void PipelinedLlepReference(Eval<T>& e) {
  ExpertsReference(e);
  const int64_t leaves = e.attributes.Int("leaves", 16), experts = e.attributes.Int("experts");
  const Array<T>& ids = Integers(e, 1);
  Array<T> counts = Array<T>::Ints({1, leaves, experts});
  for (size_t route = 0; route < ids.i.size(); ++route) {
    const int64_t leaf = static_cast<int64_t>(route) / ids.dims[1] % leaves;
    ++counts.i[static_cast<size_t>(leaf * experts + ids.i[route])];
  }
  e.out[1] = std::move(counts);
}

}  // namespace weir
