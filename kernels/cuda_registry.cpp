#include <unordered_map>

#include "backend/kernel.h"
#include "graph/op_schema.h"

namespace weir {

#ifdef WEIR_HAS_CUDA
#define OP(Name) \
  const OpSchema& Name##Schema(); \
  const Kernel& Name##CudaKernel();
#include "kernels/cuda_ops.def"
#undef OP
#endif

const Kernel* FindCudaKernel([[maybe_unused]] const OpSchema& schema) {
#ifdef WEIR_HAS_CUDA
  static const std::unordered_map<const OpSchema*, const Kernel*> kernels = {
#define OP(Name) {&Name##Schema(), &Name##CudaKernel()},
#include "kernels/cuda_ops.def"
#undef OP
  };
  const auto it = kernels.find(&schema);
  if (it != kernels.end()) return it->second;
#endif
  return nullptr;
}

}  // namespace weir
