#pragma once
#include <optional>
#include <vector>

#include "kernels/experts/cuda_batch.h"
#include "kernels/pipelined_llep/chunk_tables.h"
#include "kernels/pipelined_llep/dispatch.h"
#include "kernels/pipelined_llep/fold_steps.h"
#include "kernels/pipelined_llep/foreign_experts.h"
#include "kernels/pipelined_llep/partials.h"

namespace weir {

// PipelinedLlep and its gradient on one of several GPUs. The plan is made on the host from route
// counts (one wait for the queue per launch); rows, weights and partials travel on the
// communicator's stream, ordered with the compute queue by Start and Wait alone. Every exchange is
// started at a place that all ranks agree on.
class CudaDispatch : public ChunkJob {
 public:
  static int64_t WorkspaceBytes(const Node& node, ExpertsPass pass);

  CudaDispatch(KernelContext& c, ExpertsPass pass);
  void Run();

  void Pack(ChunkBuffers& chunk) override;
  void Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) override;
  void Unpack(ChunkBuffers& chunk) override;

 private:
  using Units = std::span<const ChunkRows::Unit>;
  struct Has {
    DType weights;
    bool gate_up_bias, down_bias;
    ExpertGradients gradients;  // null or not
  };
  struct Home {
    int64_t *routes, *row_at;  // cuda::RouteTable of a chunk in flight
  };
  struct Buffers {
    int64_t *counts, *words;
    int64_t *first, *place;  // while a chunk's routes are sorted
    int32_t* tiles;
    int64_t *away_row, *expert_at;    // of the chunk being computed: by its row; by away row
    std::vector<Home> home;           // of each set
    float *gate_up_bias, *down_bias;  // of all experts
    float* dweights;                  // by away row
    ChunkDispatch dispatch;
    ExpertBank bank;
    PartialExchange partials;
    CudaExpertBatch batch;
    Buffers(const DispatchShape& s, const Has& has, const CudaExpertBatch::Shape& batch,
            WorkspaceLayout& layout);
  };

  static CudaExpertBatch::Shape BatchShape(const DispatchShape& s, DType dtype, ExpertsPass pass);
  std::vector<int64_t> Counts();
  void Upload(const std::vector<int64_t>& words, void* to) const;
  void StartBias(size_t input, float* all);
  void WaitForWeights();

  const ChunkTables::Chunk& TableOf(const ChunkBuffers& chunk) const;
  cuda::RouteChunk RoutesOf(const ChunkBuffers& chunk) const;
  void RunBatches(std::span<const Units> runs, const std::function<void()>& halfway,
                  const std::function<void(Units)>& run);
  void Differentiate(const std::function<void()>& halfway);
  void HelpOwner(const ChunkRows::Unit& unit);
  void Backward(Units batch, const UnitBatch& units, const ExpertGradients& out);
  void ClearOutgoing();
  UnitBatch UnitsOf(Units batch) const;
  void Load(Units batch, size_t lane, std::byte* to);
  void Store(Units batch);
  std::vector<ExpertRange> Experts(Units batch) const;
  CudaExpertBatch::Rows RowsOf(Units batch) const;
  static int64_t RowsIn(Units batch) { return batch.back().end() - batch.front().first; }

  const float* Floats(size_t input) const {
    return c_.has(input) ? c_.inputs[input].data<float>() : nullptr;
  }
  int64_t batch_rows() const { return BatchShape(s_, dtype_, pass_).rows; }
  bool backward() const { return pass_ == ExpertsPass::kBackward; }

  KernelContext& c_;
  const ExpertsPass pass_;
  const DispatchShape s_;
  const DType dtype_;
  CudaStream& queue_;
  WorkspaceLayout layout_;
  const ExpertGradients out_;
  Buffers b_;
  const std::vector<int64_t> counts_;  // of all ranks
  std::optional<ChunkTables> tables_;
  std::vector<Communicator::Ticket> biases_;
  ChunkBuffers* chunk_ = nullptr;  // being computed
};

}  // namespace weir
