#pragma once
#include "backend/kernel.h"
#include "graph/op_schema.h"

namespace weir {

// Runs schema.reference_f32 on copies: the CPU kernel of ops that never carry many bytes.
void LaunchReference(KernelContext& context);

// Defines <Name>CpuKernel() as the reference.
#define WEIR_REFERENCE_CPU_KERNEL(Name)                          \
  const Kernel& Name##CpuKernel() {                              \
    static const Kernel kernel{.launch = LaunchReference};       \
    return kernel;                                               \
  }

// Reads/writes one tensor as a reference array.
Array<float> ReadArray(const Tensor& tensor);
void WriteArray(const Array<float>& array, const Tensor& tensor);

}  // namespace weir
