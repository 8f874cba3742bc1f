#pragma once
#include <cuda_runtime_api.h>

#include <memory>

namespace weir {

// What is enqueued on `queue` in its life is a span of `lane`, when a trace runs. Never throws: a trace says less rather than
// ending a run.
class TracedWork {
 public:
  TracedWork(const char* lane, cudaStream_t queue);
  ~TracedWork();
  TracedWork(const TracedWork&) = delete;
  TracedWork& operator=(const TracedWork&) = delete;

  // Where the trace's seconds begin, on the calling thread.
  static void SetOrigin(cudaEvent_t origin);

 private:
  const char* const lane_;
  const cudaStream_t queue_;
  std::shared_ptr<CUevent_st> begin_;
};

}  // namespace weir
