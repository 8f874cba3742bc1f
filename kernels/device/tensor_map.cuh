#pragma once
#include <cuda.h>

#include <cstdint>

namespace weir::cuda {

// How the copy engine reads a bfloat16 matrix [rows, width]: boxes of `box_rows` rows times 64 columns, swizzled by 128 bytes;
// zeros outside. `matrix` is aligned to 16 bytes, width is a multiple of 8. Throws DeviceError when the driver refuses.
CUtensorMap BoxMap(const void* matrix, int64_t rows, int64_t width, int box_rows);
// The same of float32: 32 columns.
CUtensorMap FloatBoxMap(const void* matrix, int64_t rows, int64_t width, int box_rows);

}  // namespace weir::cuda
