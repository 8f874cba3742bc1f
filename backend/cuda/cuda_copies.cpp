#include "backend/cuda/cuda_copies.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/traced_work.h"

namespace weir {
namespace {

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  return event;
}

}  // namespace

CudaCopies::CudaCopies(CUstream_st* compute) : compute_(compute) {
  for (CUstream_st*& queue : queues_) CheckCuda(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "creating a copy stream");
  enqueued_ = NewEvent();
}

CudaCopies::~CudaCopies() {
  for (CUstream_st* queue : queues_) cudaStreamDestroy(queue);
  for (const auto& [number, event] : events_) cudaEventDestroy(event);
  if (enqueued_ != nullptr) cudaEventDestroy(enqueued_);
}

void CudaCopies::Start(int64_t event, Direction direction, std::byte* to, const std::byte* from, int64_t bytes) {
  CUstream_st* queue = Queue(direction);
  CheckCuda(cudaEventRecord(enqueued_, compute_), "marking the compute stream");
  CheckCuda(cudaStreamWaitEvent(queue, enqueued_, 0), "ordering a copy after the compute stream");
  const auto kind = direction == Direction::kToHost ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  if (bytes > 0) {
    const TracedWork traced(direction == Direction::kToHost ? "to host" : "to device", queue);
    CheckCuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, queue), "copying");
  }
  auto [it, added] = events_.try_emplace(event);
  if (added) it->second = NewEvent();
  CheckCuda(cudaEventRecord(it->second, queue), "marking the end of a copy");
}

CUevent_st* CudaCopies::Event(int64_t event) const {
  const auto it = events_.find(event);
  WEIR_CHECK(it != events_.end(), ErrorCode::kInternal, "waiting for copy event ", event, ", which no copy was started under");
  return it->second;
}

void CudaCopies::Wait(int64_t event) { CheckCuda(cudaStreamWaitEvent(compute_, Event(event), 0), "waiting for a copy"); }

void CudaCopies::Order(Direction direction, int64_t event) {
  CheckCuda(cudaStreamWaitEvent(Queue(direction), Event(event), 0), "ordering copies");
}

void CudaCopies::Synchronize() {
  for (CUstream_st* queue : queues_) CheckCuda(cudaStreamSynchronize(queue), "waiting for copies");
}

}  // namespace weir
