#pragma once
#include <unordered_map>

#include "backend/device.h"

struct CUstream_st;
struct CUevent_st;

namespace weir {

// One stream per direction beside the compute stream, ordered by events; nothing waits on the host.
// Host memory should be registered (Device::AllocateHost does it), or a copy holds up the caller.
class CudaCopies final : public CopyEngine {
 public:
  explicit CudaCopies(CUstream_st* compute);
  ~CudaCopies() override;
  CudaCopies(const CudaCopies&) = delete;
  CudaCopies& operator=(const CudaCopies&) = delete;

  void Start(int64_t event, Direction direction, std::byte* to, const std::byte* from, int64_t bytes) override;
  void Wait(int64_t event) override;
  void Order(Direction direction, int64_t event) override;
  void Synchronize();

 private:
  CUevent_st* Event(int64_t event) const;
  CUstream_st* Queue(Direction direction) const { return queues_[static_cast<size_t>(direction)]; }

  CUstream_st* const compute_;
  CUstream_st* queues_[2] = {};
  CUevent_st* enqueued_ = nullptr;  // the compute stream's end at a Start
  std::unordered_map<int64_t, CUevent_st*> events_;
};

}  // namespace weir
