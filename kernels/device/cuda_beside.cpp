#include "backend/cuda/cuda_error.h"
#include "kernels/device/beside.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

// What is enqueued later on `second` begins after what is on `first` now.
void After(CUstream_st* first, CUstream_st* second) {
  cudaEvent_t event = nullptr;
  CheckCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  CheckCuda(cudaEventRecord(event, first), "marking a queue");
  CheckCuda(cudaStreamWaitEvent(second, event, 0), "ordering two queues");
  cudaEventDestroy(event);
}

}  // namespace

void RunBeside(KernelContext& c, const std::function<void(Communicator&, CUstream_st*)>& work) {
  CUstream_st* const compute = CudaQueue(c).stream;
  NcclCommunicator* gpus = GpusOf(c);
  if (gpus == nullptr) return work(*c.communicator, compute);
  NcclCommunicator& beside = gpus->Beside();
  After(compute, beside.compute());
  work(beside, beside.compute());
  const int64_t event = c.attributes().Int("event", -1);
  if (event >= 0) gpus->MarkBeside(event);
}

void JoinAllBeside(KernelContext& c) {
  if (NcclCommunicator* gpus = GpusOf(c)) After(gpus->Beside().compute(), CudaQueue(c).stream);
}

}  // namespace weir
