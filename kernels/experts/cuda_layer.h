#pragma once
#include <vector>

#include "backend/kernel.h"
#include "kernels/experts/cuda_batch.h"

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

// Counts of this rank's routes [leaves, experts], followed by one more word, on the device and on
// the host: one wait for the queue. Throws InvalidArgument naming an id outside [0,E). // C6
struct CudaRouteCounts {
  static int64_t Words(int64_t leaves, int64_t experts) { return leaves * experts + 1; }
  static std::vector<int64_t> Count(const Tensor& ids, int64_t leaves, int64_t experts,
                                    int64_t* device, const CudaStream& queue);
};

// [E, ...] gradients among the outputs of ExpertsGradient, zeroed where no accumulator came.
ExpertGradients CudaGradientOutputs(const KernelContext& c);

// Experts and ExpertsGradient on one GPU: routes are sorted on the device. One small download of
// route counts per launch (and so one wait) sizes them.
class CudaExperts {
 public:
  static int64_t WorkspaceBytes(const CudaExpertsShape& shape, DType dtype, ExpertsPass pass);

  CudaExperts(KernelContext& context, const CudaExpertsShape& shape, ExpertsPass pass);
  void Forward();
  void Backward();
  const int64_t* counts() const { return b_.counts; }  // on the device: [leaves, E]

 private:
  struct Buffers {
    int64_t *counts, *units;  // [leaves, E] and one more; unit tables of all chunks
    cuda::RouteTable table;
    std::byte *x, *dy;  // rows of a chunk
    CudaExpertBatch batch;
    Buffers(const CudaExpertsShape& shape, const CudaExpertBatch::Shape& batch,
            WorkspaceLayout& layout);
  };
  struct Chunk {
    cuda::RouteChunk routes;
    std::vector<ExpertRange> experts;
    std::vector<RowBlock> units;
    UnitTable table;
  };

  void PlanChunks();
  void TellLoad() const;
  void PlanRows(Chunk& chunk, int64_t first_leaf, int64_t end_leaf);
  void Sort(const Chunk& chunk);
  CudaExpertBatch::Rows RowsOf(const Chunk& chunk) const;
  void Gather(const Chunk& chunk, const Tensor& from, std::byte* to);
  void Fold(const Chunk& chunk, const float* weights, const float* bias, const Tensor& out);
  const float* Floats(size_t input) const {
    return c_.has(input) ? c_.inputs[input].data<float>() : nullptr;
  }
  int64_t At(int64_t elements) const { return BytesOf(dtype_, elements); }

  KernelContext& c_;
  const CudaExpertsShape shape_;
  const ExpertsShape& s_;
  const DType dtype_;
  CudaStream& queue_;
  WorkspaceLayout layout_;
  Buffers b_;
  std::vector<int64_t> counts_;  // [leaves, E] on the host
  std::vector<int64_t> words_;   // what b_.units holds
  std::vector<Chunk> chunks_;
};

}  // namespace weir
