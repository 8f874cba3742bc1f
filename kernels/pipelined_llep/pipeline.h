#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "backend/communicator.h"
#include "backend/kernel.h"
#include "kernels/pipelined_llep/chunk_rows.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// What one launch moves: the plan of its counts, and this rank's part of every chunk.
class DispatchPlan {
 public:
  DispatchPlan() = default;
  DispatchPlan(const KernelContext& c, const DispatchShape& shape, std::span<const int64_t> counts);
  DispatchPlan(DispatchPlan&&) = default;  // chunks refer to the plan's heap
  DispatchPlan& operator=(DispatchPlan&&) = default;

  const LlepPlan& plan() const { return plan_; }
  const std::vector<ChunkRows>& chunks() const { return chunks_; }
  Communicator* group() const { return group_; }  // nullptr on a single rank
  int64_t rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  std::string_view tensor() const { return tensor_; }  // for the names of exchanges

 private:
  LlepPlan plan_;
  std::vector<ChunkRows> chunks_;
  Communicator* group_ = nullptr;
  std::string_view tensor_;
};

// The group that a node's rows travel in; nullptr on a single rank. Throws Internal when the launch
// and the node disagree about the ranks or about this rank's share of the experts.
Communicator* ExpertGroup(const KernelContext& c, const DispatchShape& shape);

// What a pass does with chunk number `chunk`.
class ChunkStages {
 public:
  virtual ~ChunkStages() = default;
  virtual void Begin(size_t chunk) = 0;  // starts its arrival
  // Waits for the arrival, computes and starts the return; calls `halfway` once, about half way.
  // Where exchanges must be started in one order on all ranks, at a place that all ranks agree on.
  virtual void Compute(size_t chunk, const std::function<void()>& halfway) = 0;
  virtual void End(size_t chunk) = 0;  // waits for the return and folds
};

// Sets of buffers: two where there are several chunks, one where there is one, or one rank and
// nothing travels. Chunk i uses set i modulo their number.
size_t BufferSets(const DispatchShape& shape);

// With two sets chunk i-1 goes home during the first half of chunk i's computation, and chunk i+1
// arrives during the second, in the buffers that chunk i-1 has left.
void RunChunks(size_t chunks, size_t sets, ChunkStages& stages);

}  // namespace weir
