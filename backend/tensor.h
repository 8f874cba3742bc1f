#pragma once
#include <cstddef>

#include "graph/dtype.h"
#include "graph/shape.h"

namespace weir {

// Borrowed dense row-major memory on one device.
struct Tensor {
  std::byte* bytes = nullptr;  // nullptr = absent optional
  DType dtype = DType::kUndefined;
  Dims dims;

  template <class T>
  T* data() const { return reinterpret_cast<T*>(bytes); }
  int64_t elements() const { return NumElements(dims); }
  int64_t size_bytes() const { return BytesOf(dtype, elements()); }
  explicit operator bool() const { return bytes != nullptr; }
};

}  // namespace weir
