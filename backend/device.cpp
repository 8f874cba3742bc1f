#include "backend/device.h"

#include <string>

#include "backend/host_memory.h"
#include "graph/error.h"

namespace weir {

CopyEngine& Stream::copies() {
  throw Error(ErrorCode::kUnsupportedOp, "this device has no copy engine; leave --host-budget and --bucket out");
}

std::byte* Device::AllocateHost(int64_t bytes) {
  std::byte* memory = MapPages(bytes);
  WEIR_CHECK(memory != nullptr, ErrorCode::kBudgetExceeded, "the system refuses ", bytes,
             " bytes of host memory; use a smaller --micro-batch, --sequence or --host-budget");
  return memory;
}

void Device::FreeHost(std::byte* memory, int64_t bytes) noexcept { UnmapPages(memory, bytes); }

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
