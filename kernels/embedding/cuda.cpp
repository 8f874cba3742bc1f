#include "kernels/embedding/cuda.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/device/rows.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void LaunchEmbedding(KernelContext& c) {
  const Tensor &ids = c.inputs[0], &weight = c.inputs[1];
  const cuda::RowGather shape{.outer = 1,
                              .count = ids.elements(),
                              .size = weight.dims[0],
                              .row_bytes = weight.dims[1] * BytesOf(weight.dtype, 1),
                              .int32_ids = false,
                              .negative = false};
  cuda::GatherRows(shape, weight.bytes, ids.bytes, c.outputs[0].bytes, CudaQueue(c).stream);
}

int64_t GradientWorkspace(const Node& node) {
  return 2 * NumElements(ToDims(node.in(0)->shape)) * static_cast<int64_t>(sizeof(int32_t));
}

void LaunchEmbeddingGradient(KernelContext& c) {
  const Tensor &ids = c.inputs[0], &dy = c.inputs[1], &dw = c.outputs[0];
  CUstream_st* stream = CudaQueue(c).stream;
  if (!c.has(2))
    CheckCuda(cudaMemsetAsync(dw.bytes, 0, static_cast<size_t>(dw.size_bytes()), stream),
              "EmbeddingGradient");
  auto* order = reinterpret_cast<int32_t*>(c.workspace.data());
  const cuda::SortedTokens sorted{order, order + ids.elements()};
  cuda::SortTokens(ids.data<int64_t>(), ids.elements(), dw.dims[0], sorted, stream);
  cuda::AddEmbeddingGradient(ids.data<int64_t>(), sorted, dy.dtype, dy.bytes, ids.elements(), dw.dims[1],
                             dw.data<float>(), stream);
}

std::string RefuseGradient(const Node& node) { return RefuseType(node, 1, IsActivation(TypeOf(node, 1))); }

}  // namespace

WEIR_CUDA_KERNEL(Embedding, .launch = LaunchEmbedding)
WEIR_CUDA_KERNEL(EmbeddingGradient, .launch = LaunchEmbeddingGradient, .workspace_bytes = GradientWorkspace,
                 .unsupported = RefuseGradient)

}  // namespace weir
