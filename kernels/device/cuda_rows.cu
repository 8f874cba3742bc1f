#include "kernels/device/ids.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/rows.h"

namespace weir::cuda {
namespace {

template <class Unit, class Id>
__global__ void GatherRowsKernel(RowGather s, int64_t units, const Unit* x, const Id* ids,
                                 Unit* y) {
  const int64_t total = s.outer * s.count * units;
  for (int64_t k = FirstIndex(); k < total; k += IndexStride()) {
    const int64_t row = k / units, unit = k - row * units, outer = row / s.count,
                  place = row - outer * s.count;
    const int64_t id = CheckedId(ids[place], s.size, place, s.negative);
    y[k] = x[(outer * s.size + id) * units + unit];
  }
}

template <class Unit>
void Gather(const RowGather& s, const void* x, const void* ids, void* y, CUstream_st* stream) {
  const int64_t units = s.row_bytes / static_cast<int64_t>(sizeof(Unit)),
                total = s.outer * s.count * units;
  if (total == 0) return;
  const Unit* from = static_cast<const Unit*>(x);
  Unit* to = static_cast<Unit*>(y);
  if (s.int32_ids) {
    GatherRowsKernel<<<BlocksFor(total), kThreads, 0, stream>>>(
        s, units, from, static_cast<const int32_t*>(ids), to);
  } else {
    GatherRowsKernel<<<BlocksFor(total), kThreads, 0, stream>>>(
        s, units, from, static_cast<const int64_t*>(ids), to);
  }
}

}  // namespace

void GatherRows(const RowGather& s, const void* x, const void* ids, void* y, CUstream_st* stream) {
  if (s.row_bytes % 16 == 0 && IsAligned(x) && IsAligned(y))
    return Gather<uint4>(s, x, ids, y, stream);
  if (s.row_bytes % 4 == 0) return Gather<uint32_t>(s, x, ids, y, stream);
  if (s.row_bytes % 2 == 0) return Gather<uint16_t>(s, x, ids, y, stream);
  Gather<uint8_t>(s, x, ids, y, stream);
}

}  // namespace weir::cuda
