#pragma once
#include <cstdint>

#include <memory>

#include "backend/cuda/cuda_copies.h"

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
  CopyEngine& copies() override;  // made at the first call
  void SynchronizeCopies();

  CUstream_st* stream = nullptr;       // cudaStream_t
  cublasLtContext* blas = nullptr;     // cublasLtHandle_t
  int multiprocessors = 0;

 private:
  std::unique_ptr<CudaCopies> copies_;
};

// The queue a CUDA kernel launches on.
inline CudaStream& CudaQueue(KernelContext& context) { return static_cast<CudaStream&>(*context.stream); }

}  // namespace weir
