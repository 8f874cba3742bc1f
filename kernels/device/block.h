#pragma once
#include "backend/kernel.h"
#include "kernels/common/strided.h"
#include "kernels/device/strided.h"

namespace weir {

// kernels/common/strided.h on a device: `to` and `from` address the block's first elements.
void CopyBlockOnDevice(const StridedBlock& block, std::byte* to, const std::byte* from, int64_t element_bytes,
                       CUstream_st* stream);
// Activations of one type.
void SumBlockOnDevice(const StridedBlock& block, const Tensor& to, const Tensor& from, CUstream_st* stream);

}  // namespace weir
