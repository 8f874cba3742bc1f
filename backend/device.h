#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "backend/kernel.h"

namespace weir {

// Copies between device and host memory beside a device's queue of work. Copies of one direction run in the
// order they were started; an event is a number that the caller reuses freely.
class CopyEngine {
 public:
  enum class Direction : uint8_t { kToHost, kToDevice };
  virtual ~CopyEngine() = default;
  // Returns at once. The copy begins when the work enqueued before has ended; `event` is then its end.
  virtual void Start(int64_t event, Direction direction, std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Work enqueued later begins after the last copy started under `event`. Throws Internal when there is none.
  virtual void Wait(int64_t event) = 0;
  // The same for copies of `direction` started later, without holding up other work.
  virtual void Order(Direction direction, int64_t event) = 0;
};

// A queue of work on a device; kernels get it through KernelContext::stream.
class Stream {
 public:
  virtual ~Stream() = default;
  // Throws UnsupportedOp where a device has none.
  virtual CopyEngine& copies();
};

// Where a plan's bytes live and its kernels run. Work on one device is ordered: a kernel sees every upload
// before it, a download sees every kernel before it.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // Zeroed, aligned to 256 bytes, freed with Free. Throws BudgetExceeded with what was asked and what is free.
  virtual std::byte* Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* memory, int64_t bytes) noexcept = 0;
  virtual void Upload(std::byte* to, const void* host, int64_t bytes) = 0;
  virtual void Download(void* host, const std::byte* from, int64_t bytes) = 0;
  virtual void Fill(std::byte* to, int byte, int64_t bytes) = 0;
  // Zeroed, page-aligned host memory that copies reach; freed with FreeHost. Exactly `bytes`, to a page.
  virtual std::byte* AllocateHost(int64_t bytes);
  virtual void FreeHost(std::byte* memory, int64_t bytes) noexcept;
  // Returns when all work and all copies are done; throws DeviceError when any of it failed.
  virtual void Synchronize() = 0;
  // After a launch: throws DeviceError when it was refused.
  virtual void CheckLaunch() {}
  // Mark(k) notes when the work before it is done; MarkSeconds(k), after Synchronize, says when that was, from an
  // arbitrary start.
  virtual void Mark(size_t index) = 0;
  virtual double MarkSeconds(size_t index) const = 0;
  virtual Stream* stream() { return nullptr; }
};

// Every copy of its engine takes `copy_delay` longer: for tests, which a missing wait must fail.
std::shared_ptr<Device> MakeCpuDevice(std::chrono::microseconds copy_delay = {});
// GPU number `ordinal` of this process. Throws DeviceError when there is none, UnsupportedOp in a build
// without CUDA.
std::shared_ptr<Device> MakeCudaDevice(int ordinal);
// GPUs this process sees; 0 without CUDA or driver.
int CudaDeviceCount();
std::shared_ptr<Device> MakeDevice(DeviceKind kind);

std::string_view DeviceName(DeviceKind kind);       // "cpu", "cuda"
DeviceKind ParseDevice(std::string_view name);  // throws InvalidArgument

}  // namespace weir
