#pragma once
#include <vector>

#include "backend/cuda/cuda_stream.h"
#include "kernels/experts/activation.h"
#include "kernels/experts/cuda.h"
#include "kernels/experts/routing.h"

namespace weir {

// Chunks are runs of leaves whose routed rows are on the device at once.
struct CudaExpertsShape {
  ExpertsShape s;
  int64_t chunk_leaves;

  // About 32k tokens a chunk: enough rows per expert to fill the GPU.
  explicit CudaExpertsShape(const ExpertsShape& s);
  CudaExpertsShape(const ExpertsShape& shape, int64_t leaves) : s(shape), chunk_leaves(leaves) {}
  int64_t ChunkTokens() const { return std::min(s.n, chunk_leaves * s.LeafTokens()); }
};

// Experts and ExpertsGradient on one GPU: routes are sorted on the device, each expert's products
// are cuBLASLt's. One small download of route counts per launch (and so one wait) sizes them.
class CudaExperts {
 public:
  enum class Pass : uint8_t { kForward, kBackward };
  static int64_t WorkspaceBytes(const CudaExpertsShape& shape, DType dtype, Pass pass);

  CudaExperts(KernelContext& context, const CudaExpertsShape& shape, Pass pass);
  void Forward();
  void Backward();
  const int64_t* counts() const { return b_.counts; }  // on the device: [leaves, E]

 private:
  // [R, ...] for the routes of a chunk.
  struct Buffers {
    int64_t* counts;  // [leaves, E], then the first bad route
    cuda::RouteTable table;
    std::byte *x, *dy, *gate_up, *a, *da, *gemm;
    Buffers(const CudaExpertsShape& shape, DType dtype, Pass pass, WorkspaceLayout& layout);
  };
  struct Chunk {
    cuda::RouteChunk routes;
    int64_t first_leaf, end_leaf;
  };
  // A product of every expert's rows with its matrix of `weights` [E, ...]: n columns from k.
  struct Product {
    const std::byte* rows;
    const Tensor& weights;
    bool transposed;
    int64_t n, k;
    std::byte* out;
  };

  void CountRoutes();
  Chunk Sort(int64_t first_leaf);
  void Multiply(const Product& product);
  cuda::ExpertRows RowsOf(const Chunk& chunk) const;
  void Gather(const Chunk& chunk, const Tensor& from, std::byte* to);
  void ClearFreshGradients();
  void SumWeightGradients(const Chunk& chunk);
  // dW [E, outputs, inputs] += dy^T x of every unit of the chunk.
  void AddUnits(const Chunk& chunk, const std::byte* dy, int64_t outputs, const std::byte* x,
                int64_t inputs, float* dw);
  cuda::UnitCuts CutsOf(const Chunk& chunk) const;
  void Fold(const Chunk& chunk, const float* weights, const float* bias, const Tensor& out);
  const float* Floats(size_t input) const {
    return c_.has(input) ? c_.inputs[input].data<float>() : nullptr;
  }
  float* Gradient(size_t output) const;
  int64_t At(int64_t elements) const { return BytesOf(dtype_, elements); }

  KernelContext& c_;
  const CudaExpertsShape shape_;
  const ExpertsShape& s_;
  const DType dtype_;
  const cuda::Gate gate_;
  CudaStream& queue_;
  WorkspaceLayout layout_;
  Buffers b_;
  std::vector<int64_t> counts_;  // [leaves, E] on the host
  std::vector<int64_t> first_;   // first row of each expert in the chunk at hand
};

}  // namespace weir
