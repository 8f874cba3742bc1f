#pragma once
#include <functional>
#include <vector>

#include "backend/communicator.h"
#include "backend/kernel.h"
#include "kernels/common/workspace_layout.h"
#include "kernels/pipelined_llep/chunk_rows.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// Rows of one kind in both places. On a single rank the two are one array.
struct Lane {
  std::byte *home, *away;
  int64_t row_bytes;
};

// Buffers of one chunk in flight.
class ChunkBuffers {
 public:
  ChunkBuffers(const DispatchShape& shape, size_t set, std::span<const int64_t> row_bytes,
               WorkspaceLayout& layout);

  const size_t set;                 // of how many there are
  const ChunkRows* rows = nullptr;  // of the chunk
  std::vector<Lane> lanes;

  // Starts all lanes home -> away, or the first `count` lanes away -> home.
  void StartArrival(Communicator* communicator, std::string_view tensor);
  void StartReturn(Communicator* communicator, std::string_view tensor, size_t count);
  void Wait(Communicator* communicator);

 private:
  std::vector<Communicator::Ticket> tickets_;
};

// What a pass does with the rows of a chunk.
class ChunkJob {
 public:
  virtual ~ChunkJob() = default;
  virtual void Pack(ChunkBuffers& chunk) = 0;  // fills the home lanes
  // Replaces the away lanes by results; calls `halfway` once, about half way. Where exchanges must
  // be started in one order on all ranks, at a place that all ranks agree on.
  virtual void Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) = 0;
  virtual void Unpack(ChunkBuffers& chunk) = 0;  // folds the home lanes
};

// One launch: the plan of its counts, and two sets of buffers (one where there is one chunk, or one
// rank and nothing travels). While chunk i computes, chunk i-1 goes home during the first half, and
// chunk i+1 arrives during the second, in the buffers that chunk i-1 has left.
class ChunkDispatch {
 public:
  static size_t Sets(const DispatchShape& shape);

  ChunkDispatch(const DispatchShape& shape, std::span<const int64_t> row_bytes,
                size_t returned_lanes, WorkspaceLayout& layout);

  void Plan(const KernelContext& c, std::span<const int64_t> counts);
  const LlepPlan& plan() const { return plan_; }
  const std::vector<ChunkRows>& chunks() const { return chunks_; }
  Communicator* communicator() const { return communicator_; }
  int64_t rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  void Run(ChunkJob& job);

 private:
  void Begin(ChunkJob& job, size_t chunk);
  void End(ChunkJob& job, size_t chunk);
  ChunkBuffers& Buffers(size_t chunk) { return sets_[chunk % sets_.size()]; }

  const DispatchShape& shape_;
  std::vector<ChunkBuffers> sets_;
  size_t returned_lanes_;
  LlepPlan plan_;
  std::vector<ChunkRows> chunks_;
  Communicator* communicator_ = nullptr;
  std::string_view tensor_;
};

// The group that a node's rows travel in; nullptr on a single rank. Throws Internal when the launch
// and the node disagree about the ranks or about this rank's share of the experts.
Communicator* ExpertGroup(const KernelContext& c, const DispatchShape& shape);

}  // namespace weir
