#include "tests/cuda/gpu_harness.h"

#include <cstring>
#include <map>
#include <set>

#include "backend/kernel.h"
#include "kernels/common/reference_kernel.h"

namespace weir {
namespace {

constexpr int64_t kGuard = 256;
constexpr std::byte kGuardByte{0x7f}, kPoisonByte{0xff};

// Buffers with guards between them, laid out on the host and uploaded at once.
class Image {
 public:
  struct Buffer {
    std::string name;
    int64_t offset, bytes;
  };
  Buffer Add(std::string name, int64_t bytes) {
    const Buffer buffer{std::move(name), static_cast<int64_t>(host.size()) + kGuard, bytes};
    const int64_t padded = (bytes + 255) / 256 * 256;
    host.resize(static_cast<size_t>(buffer.offset + padded), kGuardByte);
    std::memset(host.data() + buffer.offset, static_cast<int>(kPoisonByte), static_cast<size_t>(bytes));
    buffers.push_back(buffer);
    return buffer;
  }
  void Close() { host.resize(host.size() + kGuard, kGuardByte); }
  // The first byte outside every buffer that is no guard byte any more; "" when all are.
  std::string TouchedGuard() const {
    int64_t at = 0;
    for (size_t b = 0; b <= buffers.size(); ++b) {
      const int64_t end = b < buffers.size() ? buffers[b].offset : static_cast<int64_t>(host.size());
      for (; at < end; ++at) {
        if (host[static_cast<size_t>(at)] != kGuardByte)
          return StrCat("wrote outside '", buffers[b == 0 ? 0 : b - 1].name, "'");
      }
      if (b < buffers.size()) at = buffers[b].offset + buffers[b].bytes;
    }
    return "";
  }
  std::vector<std::byte> host;
  std::vector<Buffer> buffers;
};

struct DeviceMemory {
  DeviceMemory(Device& d, int64_t b) : device(d), bytes(b), memory(d.Allocate(b)) {}
  ~DeviceMemory() { device.Free(memory, bytes); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  Device& device;
  const int64_t bytes;
  std::byte* const memory;
};

// The value whose buffer `output` i of the node is, or nullptr.
const Value* AliasedInput(const Node& node, size_t i) {
  for (const auto& [from, to] : node.schema->aliases) {
    if (from == static_cast<int>(i)) return node.in(static_cast<size_t>(to));
  }
  return nullptr;
}

class GraphImage {
 public:
  GraphImage(const Graph& graph, const std::vector<std::pair<Value*, Array<float>>>& feeds) {
    for (const auto& [value, array] : feeds) {
      Array<float> typed = array;
      typed.dtype = value->dtype;
      Write(*value, typed);
    }
    for (const auto& value : graph.values()) {
      if (value->role == Role::kConstant && value->data) Write(*value, ToArray(*value->data));
    }
    for (const auto& node : graph.nodes()) {
      for (size_t i = 0; i < node->outputs.size(); ++i) {
        if (node->outputs[i] == nullptr) continue;
        if (const Value* owner = AliasedInput(*node, i)) {
          buffer_of_.insert_or_assign(node->outputs[i], buffer_of_.at(owner));
          changed_.insert(buffer_of_.at(owner).offset);
        } else if (!buffer_of_.contains(node->outputs[i])) {
          buffer_of_.insert(
              {node->outputs[i], image_.Add(node->outputs[i]->name, BytesOfValue(*node->outputs[i]))});
        }
      }
      const Kernel& kernel = *FindKernel(DeviceKind::kCuda, *node->schema);
      if (kernel.workspace_bytes)
        workspace_of_.insert(
            {node.get(), image_.Add("workspace of " + node->op(), kernel.workspace_bytes(*node))});
    }
    image_.Close();
    sent_ = image_.host;
  }

  void Run(const Graph& graph, Device& device) {
    DeviceMemory memory(device, static_cast<int64_t>(image_.host.size()));
    device.Upload(memory.memory, image_.host.data(), memory.bytes);
    for (const auto& node : graph.nodes()) Launch(*node, device, memory.memory);
    device.Synchronize();
    device.Download(image_.host.data(), memory.memory, memory.bytes);
    const std::string touched = image_.TouchedGuard();
    WEIR_CHECK(touched.empty(), ErrorCode::kInternal, touched);
    for (const auto& [value, buffer] : buffer_of_) {
      if (value->producer != nullptr || changed_.contains(buffer.offset)) continue;
      WEIR_CHECK(std::memcmp(image_.host.data() + buffer.offset, sent_.data() + buffer.offset,
                             static_cast<size_t>(buffer.bytes)) == 0,
                 ErrorCode::kInternal, "input '", value->name, "' was changed");
    }
  }

  Array<float> Read(const Value& value) { return ReadArray(TensorOf(value, image_.host.data())); }

 private:
  static int64_t BytesOfValue(const Value& value) {
    return BytesOf(value.dtype, NumElements(ToDims(value.shape)));
  }

  Tensor TensorOf(const Value& value, std::byte* base) const {
    return {.bytes = base + buffer_of_.at(&value).offset, .dtype = value.dtype, .dims = ToDims(value.shape)};
  }

  void Write(const Value& value, const Array<float>& array) {
    buffer_of_.insert({&value, image_.Add(value.name, BytesOfValue(value))});
    WriteArray(array, TensorOf(value, image_.host.data()));
  }

  void Launch(const Node& node, Device& device, std::byte* base) const {
    std::vector<Tensor> inputs, outputs;
    for (const Value* value : node.inputs) inputs.push_back(value ? TensorOf(*value, base) : Tensor{});
    for (const Value* value : node.outputs) outputs.push_back(value ? TensorOf(*value, base) : Tensor{});
    std::span<std::byte> workspace;
    if (const auto it = workspace_of_.find(&node); it != workspace_of_.end()) {
      workspace = {base + it->second.offset, static_cast<size_t>(it->second.bytes)};
    }
    KernelContext context{.node = node,
                          .inputs = inputs,
                          .outputs = outputs,
                          .workspace = workspace,
                          .stream = device.stream()};
    FindKernel(DeviceKind::kCuda, *node.schema)->launch(context);
    device.CheckLaunch();
  }

  Image image_;
  std::vector<std::byte> sent_;
  std::map<const Value*, Image::Buffer> buffer_of_;
  std::map<const Node*, Image::Buffer> workspace_of_;
  std::set<int64_t> changed_;  // buffers that a node owns and updates
};

}  // namespace

Device* Gpu() {
  static const std::shared_ptr<Device> device = CudaDeviceCount() > 0 ? MakeCudaDevice(0) : nullptr;
  return device.get();
}

std::string Unsupported(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    const Kernel* kernel = FindKernel(DeviceKind::kCuda, *node->schema);
    if (kernel == nullptr) return "no CUDA kernel for " + node->op();
    const std::string reason = kernel->unsupported ? kernel->unsupported(*node) : "";
    if (!reason.empty()) return node->op() + ": " + reason;
  }
  return "";
}

std::vector<Array<float>> RunOnGpu(Graph& graph, const std::vector<std::pair<Value*, Array<float>>>& feeds,
                                   const std::vector<Value*>& wanted) {
  GraphImage image(graph, feeds);
  image.Run(graph, *Gpu());
  std::vector<Array<float>> results;
  for (Value* value : wanted) results.push_back(image.Read(*value));
  return results;
}

}  // namespace weir
