#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "kernels/attention/cuda.h"

namespace weir {

class CudaStream;

namespace cuda {

// cuDNN's fused attention for bfloat16, loaded at run time. Its forward pass is deterministic; its
// backward pass adds dq with atomics. Each function hands back false where the library, the build
// or the shape does not allow it, having done nothing: own kernels then take over.
bool CudnnForward(CudaStream& queue, const AttentionShape& s, const AttentionArrays& a,
                  std::span<std::byte> workspace);
bool CudnnBackward(CudaStream& queue, const AttentionShape& s, const AttentionArrays& a,
                   const AttentionGradients& g, std::span<std::byte> workspace);

// The version in use and what it refused so far, or why there is none.
std::string CudnnStatus();

// What the plan sets aside for the library; 0 where it is not used.
int64_t CudnnForwardBytes(const AttentionShape& s, DType dtype);
int64_t CudnnBackwardBytes(const AttentionShape& s, DType dtype);

}  // namespace cuda
}  // namespace weir
