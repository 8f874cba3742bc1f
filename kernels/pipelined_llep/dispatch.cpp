#include "kernels/pipelined_llep/dispatch.h"

#include "graph/error.h"

namespace weir {
namespace {

std::vector<int64_t> Bytes(std::span<const int64_t> rows, int64_t row_bytes) {
  std::vector<int64_t> bytes;
  for (const int64_t count : rows) bytes.push_back(count * row_bytes);
  return bytes;
}

std::span<std::byte> Rows(std::byte* rows, int64_t count, int64_t row_bytes) {
  return {rows, static_cast<size_t>(count * row_bytes)};
}

}  // namespace

ChunkBuffers::ChunkBuffers(const DispatchShape& shape, size_t set_,
                           std::span<const int64_t> row_bytes, WorkspaceLayout& layout)
    : set(set_) {
  for (const int64_t bytes : row_bytes) {
    std::byte* home = layout.Take<std::byte>(shape.home_rows() * bytes);
    std::byte* away = shape.distributed() ? layout.Take<std::byte>(shape.rows * bytes) : home;
    lanes.push_back({home, away, bytes});
  }
}

void ChunkBuffers::StartArrival(Communicator* communicator, std::string_view tensor) {
  if (communicator == nullptr) return;
  for (const Lane& lane : lanes) {
    tickets_.push_back(communicator->StartAllToAllV(
        Rows(lane.home, rows->home_rows, lane.row_bytes), Bytes(rows->sent, lane.row_bytes),
        Rows(lane.away, rows->away_rows, lane.row_bytes), Bytes(rows->received, lane.row_bytes),
        {"DispatchRows", tensor}));
  }
}

void ChunkBuffers::StartReturn(Communicator* communicator, std::string_view tensor, size_t count) {
  if (communicator == nullptr) return;
  for (const Lane& lane : std::span(lanes).first(count)) {
    tickets_.push_back(communicator->StartAllToAllV(
        Rows(lane.away, rows->away_rows, lane.row_bytes), Bytes(rows->received, lane.row_bytes),
        Rows(lane.home, rows->home_rows, lane.row_bytes), Bytes(rows->sent, lane.row_bytes),
        {"ReturnRows", tensor}));
  }
}

void ChunkBuffers::Wait(Communicator* communicator) {
  for (auto& ticket : tickets_) communicator->Wait(std::move(ticket));
  tickets_.clear();
}

size_t ChunkDispatch::Sets(const DispatchShape& shape) {
  return shape.distributed() && shape.sizes.chunks > 1 ? 2 : 1;
}

ChunkDispatch::ChunkDispatch(const DispatchShape& shape, std::span<const int64_t> row_bytes,
                             size_t returned_lanes, WorkspaceLayout& layout)
    : shape_(shape), returned_lanes_(returned_lanes) {
  for (size_t set = 0; set < Sets(shape); ++set) sets_.emplace_back(shape, set, row_bytes, layout);
}

void ChunkDispatch::Plan(const KernelContext& c, std::span<const int64_t> counts) {
  communicator_ = ExpertGroup(c, shape_);
  tensor_ = c.node.in(3)->name;
  plan_ = MakeLlepPlan(shape_.knobs, counts);
  CheckLlepPlan(shape_.knobs, counts, plan_);
  for (const LlepChunk& chunk : plan_.chunks) {
    chunks_.emplace_back(shape_.knobs, counts, chunk, rank());
    WEIR_CHECK(chunks_.back().away_rows <= shape_.rows, ErrorCode::kInternal, "a chunk brings ",
               chunks_.back().away_rows, " rows, the buffer holds ", shape_.rows);
  }
}

void ChunkDispatch::Begin(ChunkJob& job, size_t chunk) {
  ChunkBuffers& buffers = Buffers(chunk);
  buffers.rows = &chunks_[chunk];
  job.Pack(buffers);
  buffers.StartArrival(communicator_, tensor_);
}

void ChunkDispatch::End(ChunkJob& job, size_t chunk) {
  Buffers(chunk).Wait(communicator_);
  job.Unpack(Buffers(chunk));
}

void ChunkDispatch::Run(ChunkJob& job) {
  const size_t chunks = chunks_.size();
  const bool overlap = sets_.size() > 1;
  if (chunks > 0) Begin(job, 0);
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    const auto turn_over = [&, chunk] {
      if (chunk > 0) End(job, chunk - 1);
      if (chunk + 1 < chunks) Begin(job, chunk + 1);
    };
    Buffers(chunk).Wait(communicator_);
    job.Compute(Buffers(chunk), [&] {
      if (overlap) turn_over();
    });
    Buffers(chunk).StartReturn(communicator_, tensor_, returned_lanes_);
    if (overlap) continue;
    End(job, chunk);
    if (chunk + 1 < chunks) Begin(job, chunk + 1);
  }
  if (overlap && chunks > 0) End(job, chunks - 1);
}

Communicator* ExpertGroup(const KernelContext& c, const DispatchShape& shape) {
  const int64_t held = c.inputs[3].dims[0];
  Communicator* group = shape.distributed() ? c.communicator : nullptr;
  const int64_t ranks = group == nullptr ? 1 : group->size();
  WEIR_CHECK(ranks == shape.knobs.ranks, ErrorCode::kInternal, "experts are spread over ",
             shape.knobs.ranks, " ranks, the group has ", ranks);
  const int64_t rank = group == nullptr ? 0 : group->rank();
  const int64_t share = shape.knobs.FirstExpert(rank + 1) - shape.knobs.FirstExpert(rank);
  WEIR_CHECK(held == share, ErrorCode::kInternal, "rank ", rank, " of ", ranks, " holds ", held,
             " experts, its share is ", share);
  return group;
}

}  // namespace weir
