#include "kernels/pipelined_llep/dispatch.h"

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

ChunkDispatch::ChunkDispatch(const DispatchShape& shape, std::span<const int64_t> row_bytes,
                             size_t returned_lanes, WorkspaceLayout& layout)
    : shape_(shape), returned_lanes_(returned_lanes) {
  for (size_t set = 0; set < BufferSets(shape); ++set)
    sets_.emplace_back(shape, set, row_bytes, layout);
}

struct ChunkDispatch::Stages final : ChunkStages {
  Stages(ChunkDispatch& d, ChunkJob& j) : dispatch(d), job(j) {}
  ChunkBuffers& Buffers(size_t chunk) { return dispatch.sets_[chunk % dispatch.sets_.size()]; }

  void Begin(size_t chunk) override {
    ChunkBuffers& buffers = Buffers(chunk);
    buffers.rows = &dispatch.plan_.chunks()[chunk];
    job.Pack(buffers);
    buffers.StartArrival(dispatch.communicator(), dispatch.plan_.tensor());
  }
  void Compute(size_t chunk, const std::function<void()>& halfway) override {
    ChunkBuffers& buffers = Buffers(chunk);
    buffers.Wait(dispatch.communicator());
    job.Compute(buffers, halfway);
    buffers.StartReturn(dispatch.communicator(), dispatch.plan_.tensor(), dispatch.returned_lanes_);
  }
  void End(size_t chunk) override {
    Buffers(chunk).Wait(dispatch.communicator());
    job.Unpack(Buffers(chunk));
  }

  ChunkDispatch& dispatch;
  ChunkJob& job;
};

void ChunkDispatch::Run(ChunkJob& job) {
  Stages stages(*this, job);
  RunChunks(plan_.chunks().size(), sets_.size(), stages);
}

}  // namespace weir
