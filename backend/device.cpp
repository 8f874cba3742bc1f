#include "backend/device.h"

#include <string>

#include "graph/error.h"

namespace weir {

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
