#pragma once
#include <optional>
#include <vector>

#include "kernels/experts/cuda_batch.h"
#include "kernels/pipelined_llep/chunk_tables.h"
#include "kernels/pipelined_llep/cuda.h"
#include "kernels/pipelined_llep/fold_steps.h"
#include "kernels/pipelined_llep/foreign_experts.h"
#include "kernels/pipelined_llep/partials.h"
#include "kernels/pipelined_llep/pipeline.h"

namespace weir {

// PipelinedLlep and its gradient on one of several GPUs. The plan is made on the host from route
// counts (one wait for the queue per launch); rows, weights and partials travel on the
// communicator's stream, ordered with the compute queue by Start and Wait alone. Every exchange is
// started at a place that all ranks agree on. Rows arrive where they are computed (ChunkTables).
class CudaDispatch : public ChunkStages {
 public:
  static int64_t WorkspaceBytes(const Node& node, ExpertsPass pass);

  CudaDispatch(KernelContext& c, ExpertsPass pass);
  void Run();

  void Begin(size_t chunk) override;
  void Compute(size_t chunk, const std::function<void()>& halfway) override;
  void End(size_t chunk) override;

 private:
  using Units = std::span<const ChunkRows::Unit>;
  // Which optional tensors a node has.
  struct Has {
    DType weights;
    bool gate_up_bias, down_bias;
    ExpertGradients gradients;  // null or not
  };
  // Of a chunk in flight. A lane holds one thing of every row of ChunkTables' array.
  struct Set {
    int64_t *routes, *row_at;  // cuda::RouteTable
    std::byte *x, *dy;         // x becomes y, or dx
    float* weights;            // become dweights
    std::vector<Communicator::Ticket> tickets = {};
  };
  struct Buffers {
    int64_t *counts, *words;
    int64_t *first, *place;  // while a chunk's routes are sorted
    int32_t* tiles;
    int64_t* expert_at;               // by computed row of the chunk at hand
    float *gate_up_bias, *down_bias;  // of all experts
    float* dweights;                  // by computed row
    ExpertBank bank;
    PartialExchange partials;
    CudaExpertBatch batch;
    std::vector<Set> sets;
    Buffers(const DispatchShape& s, const Has& has, const CudaExpertBatch::Shape& batch,
            WorkspaceLayout& layout);
  };
  enum class Way : uint8_t { kArrival, kReturn };

  static CudaExpertBatch::Shape BatchShape(const DispatchShape& s, DType dtype, ExpertsPass pass);
  std::vector<int64_t> Counts();
  void Upload(const std::vector<int64_t>& words, void* to) const;
  void StartBias(size_t input, float* all);
  void WaitForWeights();

  Set& SetOf(size_t chunk) { return b_.sets[chunk % b_.sets.size()]; }
  const ChunkTables::Chunk& TableOf(size_t chunk) const { return tables_->chunks()[chunk]; }
  cuda::RouteChunk RoutesOf(size_t chunk) const;
  cuda::SlotPlaces SlotsOf(size_t chunk);
  void Exchange(size_t chunk, Way way, std::byte* rows, int64_t row_bytes);
  void Wait(Set& set);

  void RunBatches(std::span<const Units> runs, const std::function<void()>& halfway,
                  const std::function<void(Units)>& run);
  void Differentiate(size_t chunk, const std::function<void()>& halfway);
  void HelpOwner(const ChunkRows::Unit& unit);
  void Backward(Units batch, const UnitBatch& units, const ExpertGradients& out);
  void ClearOutgoing();
  UnitBatch UnitsOf(Units batch) const;
  std::vector<ExpertRange> Experts(Units batch) const;
  CudaExpertBatch::Rows RowsOf(Units batch);
  static int64_t RowsIn(Units batch) { return batch.back().end() - batch.front().first; }

  const float* Floats(size_t input) const {
    return c_.has(input) ? c_.inputs[input].data<float>() : nullptr;
  }
  int64_t batch_rows() const { return BatchShape(s_, dtype_, pass_).rows; }
  int64_t row_bytes() const { return BytesOf(dtype_, s_.layer.h); }
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
  const DispatchPlan plan_;
  std::optional<ChunkTables> tables_;
  std::vector<Communicator::Ticket> biases_;
  size_t chunk_ = 0;  // being computed
};

}  // namespace weir
