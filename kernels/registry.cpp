#include <unordered_map>

#include "backend/kernel.h"
#include "graph/op_schema.h"

namespace weir {

#define OP(Name, folder) \
  const OpSchema& Name##Schema(); \
  const Kernel& Name##CpuKernel();
#include "kernels/ops.def"
#undef OP

// Of kernels/cuda_ops.def in a build with CUDA, else nullptr.
const Kernel* FindCudaKernel(const OpSchema& schema);

const Kernel* FindKernel(DeviceKind device, const OpSchema& schema) {
  static const std::unordered_map<const OpSchema*, const Kernel*> cpu = {
#define OP(Name, folder) {&Name##Schema(), &Name##CpuKernel()},
#include "kernels/ops.def"
#undef OP
  };
  if (device == DeviceKind::kCuda) return FindCudaKernel(schema);
  const auto it = cpu.find(&schema);
  return it == cpu.end() || it->second->launch == nullptr ? nullptr : it->second;
}

}  // namespace weir
