#include "kernels/head_exchange/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"
#include "kernels/head_exchange/exchange.h"

namespace weir {
namespace {

void Move(KernelContext& c, const HeadRows& r) {
  const DType dtype = c.inputs[0].dtype;
  const int64_t size = BytesOf(dtype, 1);
  cuda::MoveHeadRows(dtype,
                     {.to_stride = r.to_stride / size,
                      .from_stride = r.from_stride / size,
                      .rows = r.rows,
                      .width = r.width / size,
                      .replicas = r.replicas,
                      .replica_stride = r.replica_stride / size},
                     r.from, r.to, CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(SequenceToHeads, .launch = [](KernelContext& c) { RunSequenceToHeads(c, Move); },
                 .workspace_bytes = HeadExchangeWorkspace, .unsupported = RefuseAllButActivations)
WEIR_CUDA_KERNEL(HeadsToSequence, .launch = [](KernelContext& c) { RunHeadsToSequence(c, Move); },
                 .workspace_bytes = HeadExchangeWorkspace, .unsupported = RefuseAllButActivations)

}  // namespace weir
