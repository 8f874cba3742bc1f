#pragma once
#include <string>

#include "backend/kernel.h"

namespace weir {

inline bool IsActivation(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; }
inline bool IsInteger(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kInt32; }
inline DType TypeOf(const Node& node, size_t i) {
  return node.in(i) == nullptr ? DType::kUndefined : node.in(i)->dtype;
}

// "" or why input i has no kernel here.
inline std::string RefuseType(const Node& node, size_t i, bool supported) {
  return supported ? ""
                   : "no CUDA kernel for " + std::string(DTypeName(TypeOf(node, i))) + " input " +
                         std::to_string(i);
}

// Kernel::unsupported of kernels whose input 0 is an activation.
inline std::string RefuseAllButActivations(const Node& node) {
  return RefuseType(node, 0, IsActivation(TypeOf(node, 0)));
}
// The same where integers count too.
inline std::string RefuseAllButNumbers(const Node& node) {
  return RefuseType(node, 0, IsActivation(TypeOf(node, 0)) || IsInteger(TypeOf(node, 0)));
}

}  // namespace weir

// Defines <Name>CudaKernel() from designated initialisers.
#define WEIR_CUDA_KERNEL(Name, ...)          \
  const Kernel& Name##CudaKernel() {         \
    static const Kernel kernel{__VA_ARGS__}; \
    return kernel;                           \
  }
