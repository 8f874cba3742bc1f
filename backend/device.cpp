#include "backend/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "graph/error.h"

namespace weir {
namespace {

size_t PagesOf(int64_t bytes) { return static_cast<size_t>(std::max<int64_t>(bytes, 1)); }

}  // namespace

CopyEngine& Stream::copies() {
  throw Error(ErrorCode::kUnsupportedOp, "this device has no copy engine; leave --host-budget and --bucket out");
}

// Zeroed pages, committed when first touched.
std::byte* Device::AllocateHost(int64_t bytes) {
  void* memory = mmap(nullptr, PagesOf(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  WEIR_CHECK(memory != MAP_FAILED, ErrorCode::kBudgetExceeded, "the system refuses ", bytes,
             " bytes of host memory; use a smaller --micro-batch, --sequence or --host-budget");
  return static_cast<std::byte*>(memory);
}

void Device::FreeHost(std::byte* memory, int64_t bytes) noexcept { munmap(memory, PagesOf(bytes)); }

std::shared_ptr<Device> MakeDevice(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? MakeCpuDevice() : MakeCudaDevice(0);
}

std::string_view DeviceName(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

DeviceKind ParseDevice(std::string_view name) {
  if (name == "cpu") return DeviceKind::kCpu;
  if (name == "cuda") return DeviceKind::kCuda;
  throw Error(ErrorCode::kInvalidArgument, StrCat("--device=", name, " is unknown; use cpu or cuda"));
}

}  // namespace weir
