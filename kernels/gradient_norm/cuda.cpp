#include "kernels/gradient_norm/cuda.h"

#include <algorithm>
#include <span>

#include "backend/communicator.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"
#include "kernels/gradient_norm/block_squares.h"

namespace weir {
namespace {

static_assert(kSquareBlock == cuda::kNormBlock);

int64_t BlocksOf(DType dtype, int64_t elements) { return dtype == DType::kFloat64 ? elements : SquareBlocksOf(elements); }

// Sums of squares of a tensor's blocks, which a float64 one has already.
void SquareTensor(KernelContext& c, const Tensor& x, double* blocks) {
  CUstream_st* stream = CudaQueue(c).stream;
  if (x.dtype != DType::kFloat64) return cuda::SquareBlocks(x.data<float>(), x.elements(), blocks, stream);
  CheckCuda(cudaMemcpyAsync(blocks, x.bytes, static_cast<size_t>(x.size_bytes()), cudaMemcpyDeviceToDevice, stream), "GradientNorm");
}

// One double per block of every accumulator, one per rank, and this rank's.
int64_t Workspace(const Node& node) {
  int64_t doubles = node.attributes.Int("ranks", 1) + 1;
  for (const Value* input : node.inputs) doubles += BlocksOf(input->dtype, NumElements(ToDims(input->shape)));
  return doubles * static_cast<int64_t>(sizeof(double));
}

// Squares of the inputs that are listed as shards, or of the others, block by block; returns how many blocks.
int64_t SquareInputs(KernelContext& c, bool shards, double* blocks) {
  const std::vector<int64_t> sharded = c.attributes().Ints("sharded");
  int64_t count = 0;
  for (size_t p = 0; p < c.inputs.size(); ++p) {
    const bool is_shard = std::ranges::find(sharded, static_cast<int64_t>(p)) != sharded.end();
    if (is_shard != shards) continue;
    SquareTensor(c, c.inputs[p], blocks + count);
    count += BlocksOf(c.inputs[p].dtype, c.inputs[p].elements());
  }
  return count;
}

// What every rank holds, then each rank's shards in rank order: the same sum on all ranks.
void LaunchGradientNorm(KernelContext& c) {
  CUstream_st* stream = CudaQueue(c).stream;
  auto* blocks = reinterpret_cast<double*>(c.workspace.data());
  int64_t count = SquareInputs(c, false, blocks);
  const int64_t ranks = c.attributes().Int("ranks", 1);
  if (c.attributes().Ints("sharded").empty() || ranks == 1) {
    count += SquareInputs(c, true, blocks + count);
  } else {
    WEIR_CHECK(c.communicator != nullptr && c.communicator->size() == ranks, ErrorCode::kInternal, "shards of gradients lie on ",
               ranks, " ranks, the group has ", c.communicator ? c.communicator->size() : 1);
    double* of_ranks = blocks + count;
    double* own = of_ranks + ranks;
    const int64_t own_blocks = SquareInputs(c, true, own + 1);
    cuda::SumOf(own + 1, own_blocks, own, stream);
    c.communicator->AllGather(std::as_bytes(std::span(own, 1)), std::as_writable_bytes(std::span(of_ranks, static_cast<size_t>(ranks))),
                              {"GradientNorm", "sharded gradients"});
    count += ranks;
  }
  cuda::RootOfSum(blocks, count, c.outputs[0].data<double>(), stream);
}

constexpr BlockSquarer kSquarer = {
    .copy =
        [](KernelContext& c, float* to, const float* from, int64_t elements) {
          CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(elements) * sizeof(float), cudaMemcpyDeviceToDevice, CudaQueue(c).stream), "BlockSquares");
        },
    .square = [](KernelContext& c, const float* x, int64_t elements, double* blocks) { cuda::SquareBlocks(x, elements, blocks, CudaQueue(c).stream); }};

void LaunchClipCoefficient(KernelContext& c) {
  cuda::ClipCoefficient(c.inputs[0].data<double>(), c.attributes().Float("max_norm", 0),
                        c.outputs[0].data<float>(), CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(GradientNorm, .launch = LaunchGradientNorm, .workspace_bytes = Workspace)
WEIR_CUDA_KERNEL(BlockSquares, .launch = [](KernelContext& c) { LaunchBlockSquares(c, kSquarer); }, .workspace_bytes = BlockSquaresWorkspace)
WEIR_CUDA_KERNEL(ClipCoefficient, .launch = LaunchClipCoefficient)

}  // namespace weir
