#pragma once
#include <cstdint>

struct CUstream_st;

namespace weir::cuda {

// y row (o, k) = x row (o, ids[k]): o in [0, outer), k in [0, count), ids in [-size, size) or, without
// `negative`, in [0, size). Any other id prints its position and stops the queue: DeviceError at the next
// wait.
struct RowGather {
  int64_t outer, count, size, row_bytes;
  bool int32_ids, negative;
};
void GatherRows(const RowGather& shape, const void* x, const void* ids, void* y, CUstream_st* stream);

}  // namespace weir::cuda
