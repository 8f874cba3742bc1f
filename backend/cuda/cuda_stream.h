#pragma once
#include <cstdint>

#include "backend/device.h"

struct CUstream_st;
struct cublasLtContext;

namespace weir {

// The compute queue of one GPU and the library handles bound to it.
class CudaStream final : public Stream {
 public:
  CudaStream();
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  CUstream_st* stream = nullptr;       // cudaStream_t
  cublasLtContext* blas = nullptr;     // cublasLtHandle_t
  int multiprocessors = 0;
};

// The queue a CUDA kernel launches on.
inline CudaStream& CudaQueue(KernelContext& context) { return static_cast<CudaStream&>(*context.stream); }

}  // namespace weir
