#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "graph/error.h"

namespace weir {

inline void CheckCuda(cudaError_t status, const char* what) {
  WEIR_CHECK(status == cudaSuccess, ErrorCode::kDeviceError, what, ": ", cudaGetErrorName(status), ", ",
             cudaGetErrorString(status));
}

inline void CheckBlas(cublasStatus_t status, const char* what) {
  WEIR_CHECK(status == CUBLAS_STATUS_SUCCESS, ErrorCode::kDeviceError, what, ": ", cublasLtGetStatusString(status));
}

}  // namespace weir
