#pragma once
#include <string>

#include "backend/kernel.h"

namespace weir {

// Output 0 = the bytes of input 0 (reshapes); nothing to do when they share a buffer.
void LaunchCopy(KernelContext& context);
// memcpy split over threads.
void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes);

// Kernel::unsupported of kernels that address single elements: 4-bit types have none.
std::string RefusePacked(const Node& node);

#define WEIR_COPY_CPU_KERNEL(Name)                    \
  const Kernel& Name##CpuKernel() {                   \
    static const Kernel kernel{.launch = LaunchCopy}; \
    return kernel;                                    \
  }

}  // namespace weir
