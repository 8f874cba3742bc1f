#pragma once
#include <cuda_runtime_api.h>

#include <chrono>

#include "backend/cuda/cuda_stream.h"
#include "backend/cuda/gpu_link.h"

namespace weir {

// Queue and events of a link; how bytes reach another GPU is left to Exchange.
class StreamLink : public GpuLink {
 public:
  ~StreamLink() override;
  StreamLink(const StreamLink&) = delete;
  StreamLink& operator=(const StreamLink&) = delete;

  Event NewEvent() final;
  CUstream_st* compute() final { return compute_; }
  void MarkCompute(const Event& event) final;
  void OrderCompute(const Event& event) final;
  void Move(const Event& ready, const Event& begin, const Event& end, const Transfers& transfers) final;
  bool Reached(const Event& event) final;

 protected:
  using Clock = std::chrono::steady_clock;

  // Of the calling thread's GPU.
  StreamLink(CudaStream& compute, const std::atomic<bool>& stop);
  // Enqueues what goes to and comes from other GPUs; the queue has reached `begin` then.
  virtual void Exchange(const Transfers& transfers, const Event& begin) = 0;

  static cudaEvent_t Of(const Event& event) { return static_cast<cudaEvent_t>(event.get()); }
  cudaStream_t NewQueue() const;
  void UseGpu() const { cudaSetDevice(gpu_); }
  // Throws CommError when the run was ended or the deadline has passed.
  void CheckWaiting(const char* what, Clock::time_point deadline) const;

  cudaStream_t queue() const { return queue_; }
  int gpu() const { return gpu_; }

 private:
  void CopyBeside(const Event& begin, std::span<const Copy> copies);

  const cudaStream_t compute_;
  const std::atomic<bool>& stop_;
  int gpu_ = 0;
  cudaStream_t queue_ = nullptr, copies_ = nullptr;
  Event copied_;
};

}  // namespace weir
