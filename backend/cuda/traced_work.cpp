#include "backend/cuda/traced_work.h"

#include "backend/lane_trace.h"

namespace weir {
namespace {

cudaEvent_t& Origin() {
  static thread_local cudaEvent_t origin = nullptr;
  return origin;
}

std::shared_ptr<CUevent_st> Marked(cudaStream_t queue) {
  cudaEvent_t event = nullptr;
  if (cudaEventCreate(&event) != cudaSuccess) return nullptr;
  cudaEventRecord(event, queue);
  return {event, [](CUevent_st* old) { cudaEventDestroy(old); }};
}

double SecondsOf(cudaEvent_t event) {
  float milliseconds = 0;
  if (Origin() == nullptr || cudaEventElapsedTime(&milliseconds, Origin(), event) != cudaSuccess) cudaGetLastError();
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace

TracedWork::TracedWork(const char* lane, cudaStream_t queue)
    : lane_(lane), queue_(queue), begin_(LanesAreTraced() ? Marked(queue) : nullptr) {}

TracedWork::~TracedWork() {
  if (begin_ == nullptr) return;
  const auto end = Marked(queue_);
  if (end == nullptr) return;
  AddLaneSpan(lane_, [begin = begin_, end] { return std::pair(SecondsOf(begin.get()), SecondsOf(end.get())); });
}

void TracedWork::SetOrigin(cudaEvent_t origin) { Origin() = origin; }

}  // namespace weir
