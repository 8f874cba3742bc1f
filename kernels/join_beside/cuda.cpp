#include "kernels/device/beside.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void Join(KernelContext& c) {
  if (NcclCommunicator* gpus = GpusOf(c)) gpus->OrderAfterBeside(c.attributes().Int("event"));
}

}  // namespace

WEIR_CUDA_KERNEL(JoinBeside, .launch = Join)

}  // namespace weir
