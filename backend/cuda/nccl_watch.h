#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/cuda/gpu_link.h"

namespace weir {

// Transfers that leave together, until they are over.
struct NcclBatch {
  std::string what;  // "AllToAllV of 'x' (expert, 512 bytes)"
  GpuLink* link = nullptr;
  GpuLink::Event ready, begin, end;
  GpuLink::Transfers transfers;
  bool left = false;
  std::optional<std::chrono::steady_clock::time_point> begun;  // as the watchdog saw it
};

// The health of one rank's links. A thread looks at the other ranks (through `host`), at what NCCL reports and at
// transfers that last too long; the first failure ends the transfers of all links and reaches all ranks.
class NcclWatch {
 public:
  struct Times {
    std::chrono::milliseconds timeout = std::chrono::minutes(10);
    std::chrono::milliseconds interval = std::chrono::milliseconds(100);
  };
  NcclWatch(Communicator& host, Times times);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Links are watched until Stop.
  void Add(GpuLink& link);
  // Ends the thread; what is not over then, or everything when unwinding from an error, is aborted.
  void Stop() noexcept;

  // Events of batches that are over are used again.
  std::shared_ptr<NcclBatch> NewBatch(GpuLink& link);
  // Enqueues the batch, and fails the run when that fails.
  void Leave(const std::shared_ptr<NcclBatch>& batch);

  void Abort(std::string_view reason) noexcept;
  void ThrowIfAborted() const;
  const std::atomic<bool>& stop() const { return failed_; }

 private:
  void Run();
  void Look();
  std::string Problem();
  std::string LateBatch();
  std::string FirstUnderWay() const;
  void DropFinished();
  void AbortLinks() noexcept;

  Communicator& host_;
  const Times times_;
  std::timed_mutex issue_;  // held while anything is enqueued; before mutex_
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<GpuLink*> links_;
  std::shared_ptr<NcclBatch> leaving_;  // being enqueued
  std::chrono::steady_clock::time_point leaving_since_;
  std::deque<std::shared_ptr<NcclBatch>> under_way_;
  std::vector<std::shared_ptr<NcclBatch>> spare_;
  std::atomic<bool> failed_ = false;
  std::string reason_, was_in_;
  bool ending_ = false, links_aborted_ = false;
  std::thread thread_;
};

}  // namespace weir
