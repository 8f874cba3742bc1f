#include "kernels/gather_scatter/cuda_nd.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/common/index_map.h"
#include "kernels/device/copy.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

int64_t Product(const Dims& dims, size_t first, size_t last) {
  int64_t product = 1;
  for (size_t i = first; i < last; ++i) product *= dims[i];
  return product;
}

// Of ids [batch.., tuples.., depth] into a tensor of dims `large`.
cuda::Tuples TuplesOf(const Dims& large, const Dims& ids, int64_t batch_dims) {
  const auto batch = static_cast<size_t>(batch_dims), depth = static_cast<size_t>(ids.back());
  const Dims strides = Strides(large);
  cuda::Tuples tuples{.batches = Product(large, 0, batch),
                      .per_batch = Product(ids, batch, ids.size() - 1),
                      .row = Product(large, batch + depth, large.size()),
                      .batch_elements = Product(large, batch, large.size()),
                      .depth = static_cast<int>(depth),
                      .sizes = {},
                      .strides = {}};
  for (size_t i = 0; i < depth; ++i) {
    tuples.sizes[i] = large[batch + i];
    tuples.strides[i] = strides[batch + i];
  }
  return tuples;
}

int ElementBytes(const Tensor& tensor) { return static_cast<int>(BytesOf(tensor.dtype, 1)); }

void LaunchGatherND(KernelContext& c) {
  const Tensor &x = c.inputs[0], &ids = c.inputs[1];
  cuda::GatherTuples(TuplesOf(x.dims, ids.dims, c.attributes().Int("batch_dims", 0)), ElementBytes(x),
                     x.bytes, ids.data<int64_t>(), c.outputs[0].bytes, CudaQueue(c).stream);
}

void LaunchGatherNDGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[0], &ids = c.inputs[1], &dx = c.outputs[0];
  CheckCuda(cudaMemsetAsync(dx.bytes, 0, static_cast<size_t>(dx.size_bytes()), CudaQueue(c).stream),
            "GatherNDGradient");
  cuda::AddTuples(TuplesOf(dx.dims, ids.dims, c.attributes().Int("batch_dims", 0)), dy.data<float>(),
                  ids.data<int64_t>(), dx.data<float>(), CudaQueue(c).stream);
}

bool Adds(const Node& node) { return node.attributes.String("reduction", "none") == "add"; }

void LaunchScatterND(KernelContext& c) {
  LaunchDeviceCopy(c);
  const Tensor &ids = c.inputs[1], &updates = c.inputs[2], &y = c.outputs[0];
  const cuda::Tuples tuples = TuplesOf(y.dims, ids.dims, 0);
  if (Adds(c.node)) {
    return cuda::AddTuples(tuples, updates.data<float>(), ids.data<int64_t>(), y.data<float>(),
                           CudaQueue(c).stream);
  }
  cuda::ScatterTuples(tuples, ElementBytes(y), updates.bytes, ids.data<int64_t>(), y.bytes,
                      CudaQueue(c).stream);
}

std::string Refuse(const Node& node) {
  if (node.in(1)->shape.back().Constant() > cuda::Tuples::kMaxDepth)
    return "index tuples of more than 8 entries";
  if (std::string reason = RefuseType(node, 1, TypeOf(node, 1) == DType::kInt64); !reason.empty())
    return reason;
  return RefusePacked(node);
}
std::string RefuseGradient(const Node& node) {
  if (std::string reason = RefuseType(node, 0, TypeOf(node, 0) == DType::kFloat32); !reason.empty())
    return reason;
  return Refuse(node);
}
std::string RefuseScatter(const Node& node) {
  if (Adds(node) && TypeOf(node, 0) != DType::kFloat32) return "reduction 'add' of other than float32";
  return Refuse(node);
}

}  // namespace

WEIR_CUDA_KERNEL(GatherND, .launch = LaunchGatherND, .unsupported = Refuse)
WEIR_CUDA_KERNEL(GatherNDGradient, .launch = LaunchGatherNDGradient, .unsupported = RefuseGradient)
WEIR_CUDA_KERNEL(ScatterND, .launch = LaunchScatterND, .unsupported = RefuseScatter)

}  // namespace weir
