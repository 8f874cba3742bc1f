// cuBLASLt by dlopen with the first GPU: it is 500 MB, and what uses no GPU starts without. These are the functions of
// cublasLt.h that weir calls, under their own names; each passes its call on.
#include "backend/cuda/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "graph/error.h"

namespace weir {
namespace {

const std::string kName = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);

template <class Function>
Function* Entry(const char* name) {
  auto* entry = reinterpret_cast<Function*>(dlsym(CublasLtLibrary(), name));
  WEIR_CHECK(entry != nullptr, ErrorCode::kDeviceError, kName, " has no ", name, "; install cuBLAS ", CUBLAS_VER_MAJOR);
  return entry;
}

}  // namespace

void* CublasLtLibrary() {
  static void* const library = [] {
    void* handle = dlopen(kName.c_str(), RTLD_NOW | RTLD_GLOBAL);
    // Where the toolkit puts it when the loader was not told.
    if (handle == nullptr) handle = dlopen(("/usr/local/cuda/lib64/" + kName).c_str(), RTLD_NOW | RTLD_GLOBAL);
    return handle;
  }();
  WEIR_CHECK(library != nullptr, ErrorCode::kDeviceError, "cannot load ", kName,
             ", nor from /usr/local/cuda/lib64; put its folder on LD_LIBRARY_PATH");
  return library;
}

}  // namespace weir

#define PASS_ON(Result, name, parameters, arguments)                              \
  Result name parameters {                                                        \
    static auto* const entry = weir::Entry<Result parameters>(#name);             \
    return entry arguments;                                                       \
  }
#define PASS_ON_STATUS(name, parameters, arguments) PASS_ON(cublasStatus_t, name, parameters, arguments)

extern "C" {
PASS_ON(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
PASS_ON_STATUS(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
PASS_ON_STATUS(cublasLtDestroy, (cublasLtHandle_t handle), (handle))
PASS_ON_STATUS(cublasLtMatrixLayoutInit_internal,
               (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld),
               (layout, size, type, rows, cols, ld))
PASS_ON_STATUS(cublasLtMatmulDescInit_internal,
               (cublasLtMatmulDesc_t desc, size_t size, cublasComputeType_t compute, cudaDataType_t scale),
               (desc, size, compute, scale))
PASS_ON_STATUS(cublasLtMatmulDescSetAttribute,
               (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes),
               (desc, attribute, value, bytes))
PASS_ON_STATUS(cublasLtMatmulPreferenceInit_internal, (cublasLtMatmulPreference_t preference, size_t size), (preference, size))
PASS_ON_STATUS(cublasLtMatmulPreferenceSetAttribute,
               (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                size_t bytes),
               (preference, attribute, value, bytes))
PASS_ON_STATUS(cublasLtMatmulAlgoGetHeuristic,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                cublasLtMatmulHeuristicResult_t results[], int* found),
               (handle, desc, a, b, c, d, preference, wanted, results, found))
PASS_ON_STATUS(cublasLtMatmulAlgoConfigGetAttribute,
               (const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t bytes,
                size_t* written),
               (algorithm, attribute, value, bytes, written))
PASS_ON_STATUS(cublasLtMatmul,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout,
                void* d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                cudaStream_t stream),
               (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, bytes, stream))
}
