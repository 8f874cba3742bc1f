#pragma once
#include <functional>
#include <vector>

#include "kernels/common/workspace_layout.h"
#include "kernels/pipelined_llep/pipeline.h"

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
  // Replaces the away lanes by results; calls `halfway` once, about half way.
  virtual void Compute(ChunkBuffers& chunk, const std::function<void()>& halfway) = 0;
  virtual void Unpack(ChunkBuffers& chunk) = 0;  // folds the home lanes
};

// One launch in host memory.
class ChunkDispatch {
 public:
  ChunkDispatch(const DispatchShape& shape, std::span<const int64_t> row_bytes,
                size_t returned_lanes, WorkspaceLayout& layout);

  void Plan(const KernelContext& c, std::span<const int64_t> counts) {
    plan_ = DispatchPlan(c, shape_, counts);
  }
  const LlepPlan& plan() const { return plan_.plan(); }
  Communicator* communicator() const { return plan_.group(); }
  int64_t rank() const { return plan_.rank(); }
  void Run(ChunkJob& job);

 private:
  struct Stages;

  const DispatchShape& shape_;
  std::vector<ChunkBuffers> sets_;
  size_t returned_lanes_;
  DispatchPlan plan_;
};

}  // namespace weir
