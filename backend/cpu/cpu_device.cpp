#include <chrono>
#include <cstring>
#include <vector>

#include "backend/cpu/copy_engine.h"
#include "backend/host_memory.h"
#include "graph/error.h"

namespace weir {
namespace {

// Kernels run inline; only copies have threads, from the first copy on.
class CpuStream final : public Stream {
 public:
  CpuStream(std::chrono::microseconds copy_delay, const std::chrono::steady_clock::time_point& origin) : copy_delay_(copy_delay), origin_(origin) {}
  CopyEngine& copies() override {
    if (engine_ == nullptr) engine_ = std::make_unique<CpuCopyEngine>(copy_delay_, &origin_);
    return *engine_;
  }
  void Drain() {
    if (engine_ != nullptr) engine_->Drain();
  }

 private:
  const std::chrono::microseconds copy_delay_;
  const std::chrono::steady_clock::time_point& origin_;
  std::unique_ptr<CpuCopyEngine> engine_;
};

// Ordinary memory for both arenas.
class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::chrono::microseconds copy_delay) : stream_(copy_delay, origin_) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }

  std::byte* Allocate(int64_t bytes) override {
    std::byte* memory = MapPages(bytes);
    WEIR_CHECK(memory != nullptr, ErrorCode::kBudgetExceeded, "the system refuses an arena of ", bytes,
               " bytes; use a smaller --micro-batch or --sequence");
    return memory;
  }
  void Free(std::byte* memory, int64_t bytes) noexcept override { UnmapPages(memory, bytes); }
  void Upload(std::byte* to, const void* host, int64_t bytes) override { Copy(to, host, bytes); }
  void Download(void* host, const std::byte* from, int64_t bytes) override { Copy(host, from, bytes); }
  void Fill(std::byte* to, int byte, int64_t bytes) override { std::memset(to, byte, static_cast<size_t>(bytes)); }
  void Mark(size_t index) override {
    if (marks_.size() <= index) marks_.resize(index + 1);
    marks_[index] = std::chrono::steady_clock::now();
    if (index == 0) origin_ = marks_[0];
  }
  double MarkSeconds(size_t index) const override {
    return std::chrono::duration<double>(marks_[index] - marks_[0]).count();
  }
  void Synchronize() override { stream_.Drain(); }
  Stream* stream() override { return &stream_; }

 private:
  static void Copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  std::chrono::steady_clock::time_point origin_;  // of MarkSeconds
  CpuStream stream_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

}  // namespace

std::shared_ptr<Device> MakeCpuDevice(std::chrono::microseconds copy_delay) {
  return std::make_shared<CpuDevice>(copy_delay);
}

}  // namespace weir
