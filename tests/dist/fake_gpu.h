#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/gpu_link.h"
#include "backend/device.h"

namespace weir {

// Work in order on a thread of its own, as a GPU's stream.
class FakeQueue {
 public:
  FakeQueue() : thread_([this] { Run(); }) {}
  ~FakeQueue();
  void Push(std::function<void()> work);
  void Synchronize();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false, ending_ = false;
  std::thread thread_;
};

// Host memory behind a queue. Fill takes `slow`: what does not wait for it reads what was there before.
class FakeGpu : public Device {
 public:
  explicit FakeGpu(std::chrono::milliseconds slow = {}) : slow_(slow) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::byte* Allocate(int64_t bytes) override { return new std::byte[static_cast<size_t>(bytes) + 1](); }
  void Free(std::byte* memory, int64_t) noexcept override { delete[] memory; }
  void Upload(std::byte* to, const void* host, int64_t bytes) override;
  void Download(void* host, const std::byte* from, int64_t bytes) override;
  void Fill(std::byte* to, int byte, int64_t bytes) override;
  void Synchronize() override { compute_.Synchronize(); }
  void Mark(size_t) override {}
  double MarkSeconds(size_t) const override { return 0; }
  FakeQueue& compute() { return compute_; }

 private:
  const std::chrono::milliseconds slow_;
  FakeQueue compute_;
};

// Where fake GPUs of one process meet. A message is over when its receiver has it, as NCCL's long ones are.
struct FakeFabric {
  struct Letter {
    std::vector<std::byte> bytes;
    bool taken = false;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::vector<int64_t>, std::deque<std::shared_ptr<Letter>>> letters;  // members of the group, sender, receiver
  std::map<int64_t, std::string> problems;  // of ranks of the world, to be reported by their links
  std::atomic<int64_t> stuck = -1;  // the rank whose Move does not come back
  std::atomic<int> links = 0, aborted = 0;
};

GpuLinkFactory FakeLinks(FakeGpu& gpu, FakeFabric& fabric);

}  // namespace weir
