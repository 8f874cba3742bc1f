#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "backend/tensor.h"
#include "graph/graph.h"

namespace weir {

class Stream;        // device queue (backend/device.h); CPU kernels run inline and ignore it
class Communicator;  // ranks

enum class DeviceKind : uint8_t { kCpu, kCuda };

// Everything one launch may touch. Outputs are dense, 64-byte aligned, not initialised.
struct KernelContext {
  const Node& node;
  std::span<const Tensor> inputs;
  std::span<const Tensor> outputs;
  std::span<std::byte> workspace;  // exactly workspace_bytes(node)
  Stream* stream = nullptr;
  Communicator* communicator = nullptr;

  const Attributes& attributes() const { return node.attributes; }
  bool has(size_t i) const { return i < inputs.size() && inputs[i].bytes != nullptr; }
};

// One implementation of one op on one device. Launchers check nothing that infer checked already.
struct Kernel {
  void (*launch)(KernelContext&) = nullptr;
  int64_t (*workspace_bytes)(const Node&) = nullptr;  // null = 0; shapes are concrete
  // nullptr = supports every dtype infer lets through; else a reason why not, "" = supported.
  std::string (*unsupported)(const Node&) = nullptr;
};

// nullptr when the device has no kernel for the op.
const Kernel* FindKernel(DeviceKind device, const OpSchema& schema);

}  // namespace weir
