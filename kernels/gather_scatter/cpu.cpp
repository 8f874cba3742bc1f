#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/common/index_map.h"
#include "kernels/common/integers.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/common/strided.h"
#include "kernels/order/order.h"

namespace weir {
namespace {

constexpr int64_t kGrain = 1 << 14;  // bytes or elements worth a thread

int64_t AxisOf(const KernelContext& c) { return c.attributes().Int("axis", 0); }
int64_t Grain(int64_t unit) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, unit)); }

void Zero(const Tensor& tensor) {
  const float zero = 0;
  FillElements(tensor.bytes, reinterpret_cast<const std::byte*>(&zero), tensor.elements(),
               sizeof(float));
}

// ---- Gather ----

void LaunchGather(KernelContext& c) {
  const Tensor &x = c.inputs[0], &ids = c.inputs[1], &y = c.outputs[0];
  const AxisView view = ViewAxis(x.dims, AxisOf(c));
  const int64_t count = ids.elements(), row = view.inner * BytesOf(x.dtype, 1);
  ParallelFor(view.outer * count, Grain(row), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t id = NormalizeIndex(IntAt(ids, k % count), view.size, k % count);
      const int64_t from = (k / count * view.size + id) * row;
      std::memcpy(y.bytes + k * row, x.bytes + from, static_cast<size_t>(row));
    }
  });
}

// Every element of dx sums in order of ids: a unit of work is one outer index and a range of the
// inner.
void LaunchGatherGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &ids = c.inputs[1], &dx = c.outputs[0];
  const AxisView view = ViewAxis(dx.dims, AxisOf(c));
  const int64_t count = ids.elements();
  constexpr int64_t kWidth = 64;
  const int64_t pieces = DivCeil(view.inner, kWidth);
  Zero(dx);
  ParallelFor(view.outer * pieces, Grain(count * std::min(view.inner, kWidth)),
              [&](int64_t begin, int64_t end) {
                for (int64_t unit = begin; unit < end; ++unit) {
                  const int64_t outer = unit / pieces, first = unit % pieces * kWidth;
                  const int64_t width = std::min(kWidth, view.inner - first);
                  for (int64_t k = 0; k < count; ++k) {
                    const int64_t id = NormalizeIndex(IntAt(ids, k), view.size, k);
                    float* to = dx.data<float>() + (outer * view.size + id) * view.inner + first;
                    const float* from = dy.data<float>() + (outer * count + k) * view.inner + first;
                    for (int64_t j = 0; j < width; ++j) to[j] += from[j];
                  }
                }
              });
}

// ---- GatherElements, ScatterElements ----

// Calls body(place, k) for every id k in order, where place is the element of the large tensor that
// the id addresses. Indices before the axis are split over threads: they address distinct elements.
template <class F>
void ForEachPlace(const Tensor& ids, const Dims& large, int64_t axis, F body) {
  const auto a = static_cast<size_t>(NormalizeAxis(axis, Rank(large)));
  const AxisView view = ViewAxis(ids.dims, static_cast<int64_t>(a));
  const Dims strides = Strides(large);
  // Offset in the large tensor of tuple `index` of ids' axes [first, last).
  const auto offset = [&](int64_t index, size_t first, size_t last) {
    int64_t at = 0;
    for (size_t i = last; i-- > first; index /= ids.dims[i]) at += index % ids.dims[i] * strides[i];
    return at;
  };
  ParallelFor(view.outer, Grain(view.size * view.inner), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const int64_t base = offset(o, 0, a);
      for (int64_t k = o * view.size * view.inner; k < (o + 1) * view.size * view.inner; ++k) {
        const int64_t id = NormalizeIndex(IntAt(ids, k), large[a], k);
        body(base + id * strides[a] + offset(k % view.inner, a + 1, large.size()), k);
      }
    }
  });
}

template <class E>
void GatherElements(const KernelContext& c) {
  const E* x = c.inputs[0].data<E>();
  E* y = c.outputs[0].data<E>();
  ForEachPlace(c.inputs[1], c.inputs[0].dims, AxisOf(c),
               [&](int64_t place, int64_t k) { y[k] = x[place]; });
}

template <class E>
void ScatterElements(const KernelContext& c) {
  const E* updates = c.inputs[2].data<E>();
  E* y = c.outputs[0].data<E>();
  ForEachPlace(c.inputs[1], c.outputs[0].dims, AxisOf(c),
               [&](int64_t place, int64_t k) { y[place] = updates[k]; });
}

// y[place] += updates[k], in order of k.
void AddElements(const Tensor& ids, const Tensor& updates, const Tensor& y, int64_t axis) {
  const float* from = updates.data<float>();
  float* to = y.data<float>();
  ForEachPlace(ids, y.dims, axis, [&](int64_t place, int64_t k) { to[place] += from[k]; });
}

void LaunchGatherElements(KernelContext& c) {
  switch (BytesOf(c.inputs[0].dtype, 1)) {
    case 1:
      return GatherElements<uint8_t>(c);
    case 2:
      return GatherElements<uint16_t>(c);
    case 4:
      return GatherElements<uint32_t>(c);
    default:
      return GatherElements<uint64_t>(c);
  }
}

void LaunchGatherElementsGradient(KernelContext& c) {
  Zero(c.outputs[0]);
  AddElements(c.inputs[1], c.inputs[0], c.outputs[0], AxisOf(c));
}

void LaunchScatterElements(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const bool add = c.attributes().String("reduction", "none") == "add";
  if (add && y.dtype != DType::kFloat32) return LaunchReference(c);
  CopyBytes(y.bytes, c.inputs[0].bytes, y.size_bytes());
  if (add) return AddElements(c.inputs[1], c.inputs[2], y, AxisOf(c));
  switch (BytesOf(y.dtype, 1)) {
    case 1:
      return ScatterElements<uint8_t>(c);
    case 2:
      return ScatterElements<uint16_t>(c);
    case 4:
      return ScatterElements<uint32_t>(c);
    default:
      return ScatterElements<uint64_t>(c);
  }
}

}  // namespace

#define GATHER_SCATTER_CPU_KERNEL(Name)                                              \
  const Kernel& Name##CpuKernel() {                                                  \
    static const Kernel kernel{.launch = Launch##Name, .unsupported = RefusePacked}; \
    return kernel;                                                                   \
  }
GATHER_SCATTER_CPU_KERNEL(Gather)
GATHER_SCATTER_CPU_KERNEL(GatherGradient)
GATHER_SCATTER_CPU_KERNEL(GatherElements)
GATHER_SCATTER_CPU_KERNEL(GatherElementsGradient)
GATHER_SCATTER_CPU_KERNEL(ScatterElements)

WEIR_REFERENCE_CPU_KERNEL(GatherND)
WEIR_REFERENCE_CPU_KERNEL(GatherNDGradient)
WEIR_REFERENCE_CPU_KERNEL(ScatterND)

}  // namespace weir
