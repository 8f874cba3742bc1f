#pragma once
#include "backend/kernel.h"

namespace weir {

// Output 0 = the bytes of input 0 (reshapes); nothing to do when they share a buffer.
void LaunchCopy(KernelContext& context);
// memcpy split over threads.
void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes);

#define WEIR_COPY_CPU_KERNEL(Name)                          \
  const Kernel& Name##CpuKernel() {                         \
    static const Kernel kernel{.launch = LaunchCopy};       \
    return kernel;                                          \
  }

}  // namespace weir
