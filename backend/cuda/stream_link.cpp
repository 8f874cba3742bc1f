#include "backend/cuda/stream_link.h"

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/traced_work.h"

namespace weir {
namespace {

// The other GPU would read or write it wherever it is.
void CheckMemory(std::span<const GpuLink::Message> messages) {
  for (const GpuLink::Message& message : messages) {
    cudaPointerAttributes attributes{};
    const bool known = cudaPointerGetAttributes(&attributes, message.bytes) == cudaSuccess;
    if (!known) cudaGetLastError();
    WEIR_CHECK(known && attributes.type == cudaMemoryTypeDevice, ErrorCode::kInternal,
               "a transfer between GPUs of memory of the host; Communicator::host() moves that");
  }
}

}  // namespace

StreamLink::StreamLink(CudaStream& compute, const std::atomic<bool>& stop) : compute_(compute.stream), stop_(stop) {
  CheckCuda(cudaGetDevice(&gpu_), "reading the current GPU");
  queue_ = NewQueue();
  copies_ = NewQueue();
  copied_ = NewEvent();
}

StreamLink::~StreamLink() {
  UseGpu();
  for (cudaStream_t queue : {queue_, copies_}) cudaStreamDestroy(queue);
}

// Before the products where both could run.
cudaStream_t StreamLink::NewQueue() const {
  int least = 0, greatest = 0;
  CheckCuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading stream priorities");
  cudaStream_t queue = nullptr;
  CheckCuda(cudaStreamCreateWithPriority(&queue, cudaStreamNonBlocking, greatest), "creating a communication stream");
  return queue;
}

GpuLink::Event StreamLink::NewEvent() {
  cudaEvent_t event = nullptr;
  CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  return {event, [](void* old) { cudaEventDestroy(static_cast<cudaEvent_t>(old)); }};
}

void StreamLink::MarkCompute(const Event& event) { CheckCuda(cudaEventRecord(Of(event), compute_), "marking the compute stream"); }

void StreamLink::OrderCompute(const Event& event) {
  CheckCuda(cudaStreamWaitEvent(compute_, Of(event), 0), "waiting for a transfer");
}

void StreamLink::Move(const Event& ready, const Event& begin, const Event& end, const Transfers& t) {
  CheckMemory(t.send);
  CheckMemory(t.receive);
  CheckCuda(cudaStreamWaitEvent(queue_, Of(ready), 0), "ordering a transfer after the compute stream");
  CheckCuda(cudaEventRecord(Of(begin), queue_), "marking the begin of a transfer");
  const TracedWork traced("between GPUs", queue_);
  if (!t.copies.empty()) CopyBeside(begin, t.copies);
  if (!t.send.empty() || !t.receive.empty()) Exchange(t, begin);
  if (!t.copies.empty()) CheckCuda(cudaStreamWaitEvent(queue_, Of(copied_), 0), "waiting for a copy");
  CheckCuda(cudaEventRecord(Of(end), queue_), "marking the end of a transfer");
}

// What stays on this GPU, while the links are busy with the rest.
void StreamLink::CopyBeside(const Event& begin, std::span<const Copy> copies) {
  CheckCuda(cudaStreamWaitEvent(copies_, Of(begin), 0), "ordering a copy");
  for (const Copy& copy : copies) {
    CheckCuda(cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.count), cudaMemcpyDeviceToDevice, copies_), "copying");
  }
  CheckCuda(cudaEventRecord(Of(copied_), copies_), "marking the end of a copy");
}

bool StreamLink::Reached(const Event& event) {
  UseGpu();
  if (cudaEventQuery(Of(event)) != cudaErrorNotReady) return true;
  cudaGetLastError();  // "not yet" would count as an error of the next launch
  return false;
}

void StreamLink::CheckWaiting(const char* what, Clock::time_point deadline) const {
  WEIR_CHECK(!stop_, ErrorCode::kCommError, what, ": the run was ended meanwhile");
  WEIR_CHECK(Clock::now() < deadline, ErrorCode::kCommError, what, ": not all ranks came in time");
}

}  // namespace weir
