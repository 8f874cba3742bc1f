#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "backend/kernel.h"

namespace weir {

// A queue of work on a device; kernels get it through KernelContext::stream.
class Stream {
 public:
  virtual ~Stream() = default;
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
  // Returns when all work is done; throws DeviceError when any of it failed.
  virtual void Synchronize() = 0;
  // After a launch: throws DeviceError when it was refused.
  virtual void CheckLaunch() {}
  // Mark(k) notes when the work before it is done; MarkSeconds(k), after Synchronize, says when that was, from an
  // arbitrary start.
  virtual void Mark(size_t index) = 0;
  virtual double MarkSeconds(size_t index) const = 0;
  virtual Stream* stream() { return nullptr; }
};

std::shared_ptr<Device> MakeCpuDevice();
// GPU number `ordinal` of this process. Throws DeviceError when there is none, UnsupportedOp in a build
// without CUDA.
std::shared_ptr<Device> MakeCudaDevice(int ordinal);
// GPUs this process sees; 0 without CUDA or driver.
int CudaDeviceCount();
std::shared_ptr<Device> MakeDevice(DeviceKind kind);

std::string_view DeviceName(DeviceKind kind);       // "cpu", "cuda"
DeviceKind ParseDevice(std::string_view name);  // throws InvalidArgument

}  // namespace weir
