// The copy engine is the device's; the kernels are those of the CPU.
#include "backend/kernel.h"

namespace weir {

const Kernel& StashStartCpuKernel();
const Kernel& StashWaitCpuKernel();
const Kernel& FetchStartCpuKernel();
const Kernel& FetchWaitCpuKernel();

const Kernel& StashStartCudaKernel() { return StashStartCpuKernel(); }
const Kernel& StashWaitCudaKernel() { return StashWaitCpuKernel(); }
const Kernel& FetchStartCudaKernel() { return FetchStartCpuKernel(); }
const Kernel& FetchWaitCudaKernel() { return FetchWaitCpuKernel(); }

}  // namespace weir
