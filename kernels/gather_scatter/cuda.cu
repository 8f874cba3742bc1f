#include "kernels/device/ids.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/gather_scatter/cuda.h"

namespace weir::cuda {
namespace {

// Column (outer, inner) of ids: its first id, the step between ids, and where they point at id 0.
struct Column {
  int64_t first, step, base;
  __device__ Column(const ElementPlaces& p, int64_t inner_size, int64_t index) {
    const int64_t outer = index / inner_size, inner = index - outer * inner_size;
    first = outer * p.dims[p.axis] * inner_size + inner;
    step = inner_size;
    base = Offset(p, outer, 0, p.axis) + Offset(p, inner, p.axis + 1, p.rank);
  }
  __device__ static int64_t Offset(const ElementPlaces& p, int64_t index, int begin, int end) {
    int64_t at = 0;
    for (int i = end - 1; i >= begin; --i) {
      const int64_t rest = index / p.dims[i];
      at += (index - rest * p.dims[i]) * p.strides[i];
      index = rest;
    }
    return at;
  }
};

// Calls body(place, k) for every id of every column, a column's ids in order by one thread.
template <class Id, class Body>
__device__ void ForEachPlace(const ElementPlaces& p, int64_t columns, int64_t inner_size, const Id* ids,
                             const Body& body) {
  for (int64_t index = FirstIndex(); index < columns; index += IndexStride()) {
    const Column column(p, inner_size, index);
    for (int64_t j = 0; j < p.dims[p.axis]; ++j) {
      const int64_t k = column.first + j * column.step;
      body(column.base + CheckedId(ids[k], p.large, k, true) * p.strides[p.axis], k);
    }
  }
}

template <class E, class Id>
__global__ void GatherKernel(ElementPlaces p, int64_t columns, int64_t inner_size, const E* x, const Id* ids,
                             E* y) {
  ForEachPlace(p, columns, inner_size, ids, [&](int64_t place, int64_t k) { y[k] = x[place]; });
}
template <class E, class Id>
__global__ void ScatterKernel(ElementPlaces p, int64_t columns, int64_t inner_size, const E* updates,
                              const Id* ids, E* y) {
  ForEachPlace(p, columns, inner_size, ids, [&](int64_t place, int64_t k) { y[place] = updates[k]; });
}
template <class T, class Id>
__global__ void AddKernel(ElementPlaces p, int64_t columns, int64_t inner_size, const T* updates,
                          const Id* ids, float* y) {
  ForEachPlace(p, columns, inner_size, ids,
               [&](int64_t place, int64_t k) { y[place] += ToFloat(updates[k]); });
}

struct Sizes {
  int64_t columns, inner;
};
Sizes SizesOf(const ElementPlaces& p) {
  Sizes sizes{p.dims[p.axis] > 0 ? 1 : 0, 1};
  for (int i = 0; i < p.rank; ++i) {
    if (i != p.axis) sizes.columns *= p.dims[i];
    if (i > p.axis) sizes.inner *= p.dims[i];
  }
  return sizes;
}

// Calls body(typed ids) with the type of the ids.
template <class Body>
void WithIds(bool int32_ids, const void* ids, const Body& body) {
  int32_ids ? body(static_cast<const int32_t*>(ids)) : body(static_cast<const int64_t*>(ids));
}

template <class E>
void Gather(const ElementPlaces& p, const void* x, const void* ids, void* y, CUstream_st* stream) {
  const Sizes s = SizesOf(p);
  if (s.columns == 0) return;
  WithIds(p.int32_ids, ids, [&](auto typed) {
    GatherKernel<<<BlocksFor(s.columns), kThreads, 0, stream>>>(
        p, s.columns, s.inner, static_cast<const E*>(x), typed, static_cast<E*>(y));
  });
}
template <class E>
void Scatter(const ElementPlaces& p, const void* updates, const void* ids, void* y, CUstream_st* stream) {
  const Sizes s = SizesOf(p);
  if (s.columns == 0) return;
  WithIds(p.int32_ids, ids, [&](auto typed) {
    ScatterKernel<<<BlocksFor(s.columns), kThreads, 0, stream>>>(
        p, s.columns, s.inner, static_cast<const E*>(updates), typed, static_cast<E*>(y));
  });
}

// One thread per (outer, inner): it meets the ids in order.
template <class Id>
__global__ void AddRowsKernel(RowScatter s, const float* dy, const Id* ids, float* dx) {
  for (int64_t k = FirstIndex(); k < s.outer * s.inner; k += IndexStride()) {
    const int64_t outer = k / s.inner, inner = k - outer * s.inner;
    for (int64_t place = 0; place < s.count; ++place) {
      const int64_t id = CheckedId(ids[place], s.size, place, true);
      dx[(outer * s.size + id) * s.inner + inner] += dy[(outer * s.count + place) * s.inner + inner];
    }
  }
}

}  // namespace

void GatherElements(const ElementPlaces& p, int element_bytes, const void* x, const void* ids, void* y,
                    CUstream_st* stream) {
  switch (element_bytes) {
    case 1:
      return Gather<uint8_t>(p, x, ids, y, stream);
    case 2:
      return Gather<uint16_t>(p, x, ids, y, stream);
    case 4:
      return Gather<uint32_t>(p, x, ids, y, stream);
    default:
      return Gather<uint64_t>(p, x, ids, y, stream);
  }
}

void ScatterElements(const ElementPlaces& p, int element_bytes, const void* updates, const void* ids, void* y,
                     CUstream_st* stream) {
  switch (element_bytes) {
    case 1:
      return Scatter<uint8_t>(p, updates, ids, y, stream);
    case 2:
      return Scatter<uint16_t>(p, updates, ids, y, stream);
    case 4:
      return Scatter<uint32_t>(p, updates, ids, y, stream);
    default:
      return Scatter<uint64_t>(p, updates, ids, y, stream);
  }
}

void AddElements(const ElementPlaces& p, bool bfloat16, const void* updates, const void* ids, float* y,
                 CUstream_st* stream) {
  const Sizes s = SizesOf(p);
  if (s.columns == 0) return;
  WithFloatType(bfloat16 ? DType::kBFloat16 : DType::kFloat32, [&](auto type) {
    using T = decltype(type);
    WithIds(p.int32_ids, ids, [&](auto typed) {
      AddKernel<<<BlocksFor(s.columns), kThreads, 0, stream>>>(p, s.columns, s.inner,
                                                               static_cast<const T*>(updates), typed, y);
    });
  });
}

void AddRows(const RowScatter& s, const float* dy, const void* ids, float* dx, CUstream_st* stream) {
  const int64_t threads = s.outer * s.inner;
  if (threads == 0) return;
  WithIds(s.int32_ids, ids,
          [&](auto typed) { AddRowsKernel<<<BlocksFor(threads), kThreads, 0, stream>>>(s, dy, typed, dx); });
}

}  // namespace weir::cuda
