#include "graph/error.h"
#include "kernels/device/block.h"

namespace weir {
namespace {

// Axes of size 1 dropped; neighbours that step alike on both sides joined.
cuda::StridedAxes Coalesce(const StridedBlock& block) {
  cuda::StridedAxes axes;
  for (size_t i = 0; i < block.dims.size(); ++i) {
    const int64_t size = block.dims[i], to = block.to_strides[i], from = block.from_strides[i];
    if (size == 1) continue;
    const int last = axes.rank - 1;
    if (last >= 0 && axes.to[last] == to * size && axes.from[last] == from * size) {
      axes.size[last] *= size;
      axes.to[last] = to;
      axes.from[last] = from;
      continue;
    }
    WEIR_CHECK(axes.rank < cuda::kMaxRank, ErrorCode::kUnsupportedOp, "a block of more than ",
               cuda::kMaxRank, " axes");
    axes.size[axes.rank] = size;
    axes.to[axes.rank] = to;
    axes.from[axes.rank++] = from;
  }
  return axes;
}

bool Divides(int64_t unit, const std::byte* address) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(unit) == 0;
}

// The largest unit up to 16 bytes in which the whole copy can be counted.
int64_t UnitOf(const cuda::StridedAxes& axes, int64_t element_bytes, const std::byte* to,
               const std::byte* from) {
  const int last = axes.rank - 1;
  if (last < 0 || axes.to[last] != 1 || axes.from[last] != 1) return element_bytes;
  for (int64_t unit = 16; unit > element_bytes; unit /= 2) {
    bool fits =
        Divides(unit, to) && Divides(unit, from) && axes.size[last] * element_bytes % unit == 0;
    for (int i = 0; i < last; ++i) {
      fits = fits && axes.to[i] * element_bytes % unit == 0 &&
             axes.from[i] * element_bytes % unit == 0;
    }
    if (fits) return unit;
  }
  return element_bytes;
}

}  // namespace

void CopyBlockOnDevice(const StridedBlock& block, std::byte* to, const std::byte* from,
                       int64_t element_bytes, CUstream_st* stream) {
  cuda::StridedAxes axes = Coalesce(block);
  const int64_t unit = UnitOf(axes, element_bytes, to, from), last = axes.rank - 1;
  if (unit > element_bytes) {
    axes.size[last] = axes.size[last] * element_bytes / unit;
    for (int i = 0; i < last; ++i) {
      axes.to[i] = axes.to[i] * element_bytes / unit;
      axes.from[i] = axes.from[i] * element_bytes / unit;
    }
  }
  cuda::CopyStrided(axes, to, from, static_cast<int>(unit), stream);
}

void SumBlockOnDevice(const StridedBlock& block, const Tensor& to, const Tensor& from,
                      CUstream_st* stream) {
  const cuda::StridedAxes axes = Coalesce(block);
  cuda::StridedAxes kept, summed;
  for (int i = 0; i < axes.rank; ++i) {
    cuda::StridedAxes& part = axes.to[i] == 0 ? summed : kept;
    part.size[part.rank] = axes.size[i];
    part.to[part.rank] = axes.to[i];
    part.from[part.rank++] = axes.from[i];
  }
  cuda::SumStrided(kept, summed, to.bytes, from.bytes, from.dtype == DType::kBFloat16, stream);
}

}  // namespace weir
