#include "kernels/pipelined_llep/dispatch.h"

#include "graph/error.h"

namespace weir {
namespace {

std::vector<int64_t> Bytes(std::span<const int64_t> rows, int64_t width) {
  std::vector<int64_t> bytes;
  for (const int64_t count : rows) {
    bytes.push_back(count * width * static_cast<int64_t>(sizeof(float)));
  }
  return bytes;
}

std::span<std::byte> Rows(float* rows, int64_t count, int64_t width) {
  return std::as_writable_bytes(std::span(rows, static_cast<size_t>(count * width)));
}

}  // namespace

ChunkBuffers::ChunkBuffers(const DispatchShape& shape, std::span<const int64_t> widths,
                           WorkspaceLayout& layout)
    : routes(shape, layout) {
  for (const int64_t width : widths) {
    float* home = layout.Take<float>(shape.home_rows() * width);
    float* away = shape.distributed() ? layout.Take<float>(shape.rows * width) : home;
    lanes.push_back({home, away, width});
  }
}

void ChunkBuffers::StartArrival(Communicator* communicator, std::string_view tensor) {
  if (communicator == nullptr) return;
  for (const Lane& lane : lanes) {
    tickets_.push_back(communicator->StartAllToAllV(
        Rows(lane.home, routes.home_rows(), lane.width), Bytes(routes.sent(), lane.width),
        Rows(lane.away, routes.away_rows(), lane.width), Bytes(routes.received(), lane.width),
        {"DispatchRows", tensor}));
  }
}

void ChunkBuffers::StartReturn(Communicator* communicator, std::string_view tensor, size_t count) {
  if (communicator == nullptr) return;
  for (const Lane& lane : std::span(lanes).first(count)) {
    tickets_.push_back(communicator->StartAllToAllV(
        Rows(lane.away, routes.away_rows(), lane.width), Bytes(routes.received(), lane.width),
        Rows(lane.home, routes.home_rows(), lane.width), Bytes(routes.sent(), lane.width),
        {"ReturnRows", tensor}));
  }
}

void ChunkBuffers::Wait(Communicator* communicator) {
  for (auto& ticket : tickets_) communicator->Wait(std::move(ticket));
  tickets_.clear();
}

ChunkDispatch::ChunkDispatch(const DispatchShape& shape, std::span<const int64_t> widths,
                             size_t returned_lanes, WorkspaceLayout& layout)
    : shape_(shape), returned_lanes_(returned_lanes) {
  for (int set = 0; set < (shape.distributed() ? 2 : 1); ++set) {
    sets_.emplace_back(shape, widths, layout);
  }
}

void ChunkDispatch::Plan(const KernelContext& c, std::span<const int64_t> counts,
                         const int64_t* ids) {
  communicator_ = ExpertGroup(c, shape_);
  tensor_ = c.node.in(3)->name;
  counts_ = counts;
  ids_ = ids;
  plan_ = MakeLlepPlan(shape_.knobs, counts);
  CheckLlepPlan(shape_.knobs, counts, plan_);
}

void ChunkDispatch::Begin(ChunkJob& job, size_t chunk) {
  ChunkBuffers& buffers = Buffers(chunk);
  buffers.routes.Build(plan_.chunks[chunk], counts_, ids_, rank());
  job.Pack(buffers);
  buffers.StartArrival(communicator_, tensor_);
}

void ChunkDispatch::End(ChunkJob& job, size_t chunk) {
  Buffers(chunk).Wait(communicator_);
  job.Unpack(Buffers(chunk));
}

void ChunkDispatch::Run(ChunkJob& job) {
  const size_t chunks = plan_.chunks.size();
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
