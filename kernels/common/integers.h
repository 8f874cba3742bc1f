#pragma once
#include <vector>

#include "backend/tensor.h"

namespace weir {

// Element k of an int64 or int32 tensor.
inline int64_t IntAt(const Tensor& tensor, int64_t k) {
  return tensor.dtype == DType::kInt32 ? tensor.data<int32_t>()[k] : tensor.data<int64_t>()[k];
}

inline std::vector<int64_t> ReadInts(const Tensor& tensor) {
  std::vector<int64_t> out;
  for (int64_t k = 0; k < tensor.elements(); ++k) out.push_back(IntAt(tensor, k));
  return out;
}

}  // namespace weir
