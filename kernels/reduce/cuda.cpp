#include "kernels/reduce/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "graph/error.h"
#include "kernels/common/index_map.h"
#include "kernels/device/known_ints.h"
#include "kernels/device/types.h"
#include "kernels/reduce/reference.h"

namespace weir {
namespace {

cuda::ReduceAxes AxesOf(const KernelContext& c) {
  const Dims &dims = c.inputs[0].dims, strides = Strides(dims);
  const std::vector<int64_t> given = c.has(1) ? KnownInts(c.node, 1) : std::vector<int64_t>{};
  const auto reduced = ReducedAxes(c.attributes(), dims.size(), c.has(1) ? &given : nullptr);
  cuda::ReduceAxes axes;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    int& rank = reduced[i] ? axes.reduced_rank : axes.kept_rank;
    WEIR_CHECK(rank < cuda::ReduceAxes::kMaxRank, ErrorCode::kUnsupportedOp, c.node.op(), ": rank of ",
               ToString(dims));
    (reduced[i] ? axes.reduced_size : axes.kept_size)[rank] = dims[i];
    (reduced[i] ? axes.reduced_stride : axes.kept_stride)[rank++] = strides[i];
  }
  return axes;
}

template <cuda::Reduction kind>
void LaunchReduce(KernelContext& c) {
  cuda::Reduce(kind, c.inputs[0].dtype, AxesOf(c), c.inputs[0].bytes, c.outputs[0].bytes,
               CudaQueue(c).stream);
}

std::string Refuse(const Node& node) {
  if (std::string reason = RefuseAllButNumbers(node); !reason.empty()) return reason;
  return RefuseUnknownInts<1>(node);
}

}  // namespace

#define WEIR_REDUCE_KERNEL(Name) \
  WEIR_CUDA_KERNEL(Reduce##Name, .launch = LaunchReduce<cuda::Reduction::k##Name>, .unsupported = Refuse)
WEIR_REDUCE_KERNEL(Sum)
WEIR_REDUCE_KERNEL(Mean)
WEIR_REDUCE_KERNEL(Max)
WEIR_REDUCE_KERNEL(Min)
WEIR_REDUCE_KERNEL(Prod)
WEIR_REDUCE_KERNEL(L2)
WEIR_REDUCE_KERNEL(SumSquare)
WEIR_REDUCE_KERNEL(LogSumExp)

}  // namespace weir
