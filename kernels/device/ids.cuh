#pragma once
#include <cstdint>
#include <cstdio>

namespace weir::cuda {

// An id in [-size, size), or [0, size) unless `negative`, as [0, size).
__device__ inline int64_t CheckedId(int64_t id, int64_t size, int64_t position, bool negative) {
  const int64_t normal = negative && id < 0 ? id + size : id;
  if (normal < 0 || normal >= size) {
    printf("id %lld at position %lld is outside [%lld, %lld)\n", static_cast<long long>(id),
           static_cast<long long>(position), static_cast<long long>(negative ? -size : 0),
           static_cast<long long>(size));
    __trap();
  }
  return normal;
}

}  // namespace weir::cuda
