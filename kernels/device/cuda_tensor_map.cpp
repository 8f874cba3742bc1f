#include "backend/cuda/cuda_error.h"
#include "kernels/device/tensor_map.cuh"

namespace weir::cuda {
namespace {

// From the driver at run time: the program itself links no libcuda.
decltype(&cuTensorMapEncodeTiled) Encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    CheckCuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
              "looking for cuTensorMapEncodeTiled");
    WEIR_CHECK(found == cudaDriverEntryPointSuccess, ErrorCode::kDeviceError,
               "the GPU's driver has no cuTensorMapEncodeTiled; a driver for CUDA 12 or later is needed");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return encoder;
}

// Boxes of `box_rows` rows times 128 bytes.
CUtensorMap Map(const void* matrix, int64_t rows, int64_t width, int box_rows, CUtensorMapDataType type, int size) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(width * size)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / size), static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  const CUresult result = Encoder()(&map, type, 2, const_cast<void*>(matrix), sizes, strides, box, steps,
                                    CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  WEIR_CHECK(result == CUDA_SUCCESS, ErrorCode::kDeviceError, "the driver refuses a map of [", rows, ",", width,
             "], ", size, " bytes each: CUresult ", static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap BoxMap(const void* matrix, int64_t rows, int64_t width, int box_rows) {
  return Map(matrix, rows, width, box_rows, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2);
}
CUtensorMap FloatBoxMap(const void* matrix, int64_t rows, int64_t width, int box_rows) {
  return Map(matrix, rows, width, box_rows, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4);
}

}  // namespace weir::cuda
