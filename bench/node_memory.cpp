#include "bench/node_memory.h"

#include <algorithm>
#include <chrono>

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

const Kernel& KernelOf(const Device& device, const Node& node) {
  const Kernel* kernel = FindKernel(device.kind(), *node.schema);
  WEIR_CHECK(kernel != nullptr, ErrorCode::kUnsupportedOp, "no kernel for ", node.op(), " on ",
             DeviceName(device.kind()));
  const std::string reason = kernel->unsupported ? kernel->unsupported(node) : "";
  WEIR_CHECK(reason.empty(), ErrorCode::kUnsupportedOp, node.op(), " on ",
             DeviceName(device.kind()), ": ", reason);
  return *kernel;
}

}  // namespace

NodeMemory::NodeMemory(Device& device, const Node& node)
    : device_(device), node_(node), kernel_(KernelOf(device, node)) {
  for (const Value* value : node.inputs)
    inputs_.push_back(value != nullptr ? Allocate(*value) : Tensor{});
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Tensor* owner = AliasedInput(i);
    outputs_.push_back(owner != nullptr             ? *owner
                       : node.outputs[i] != nullptr ? Allocate(*node.outputs[i])
                                                    : Tensor{});
  }
  const int64_t scratch = kernel_.workspace_bytes ? kernel_.workspace_bytes(node) : 0;
  workspace_ = {Allocate(scratch), static_cast<size_t>(scratch)};
  for (const Tensor& tensor : inputs_) {
    if (tensor) device_.Fill(tensor.bytes, 1, tensor.size_bytes());
  }
}

NodeMemory::~NodeMemory() {
  for (const auto& [memory, bytes] : owned_) device_.Free(memory, bytes);
}

std::byte* NodeMemory::Allocate(int64_t bytes) {
  owned_.emplace_back(device_.Allocate(bytes), bytes);
  return owned_.back().first;
}

Tensor NodeMemory::Allocate(const Value& value) {
  Tensor tensor{.bytes = nullptr, .dtype = value.dtype, .dims = ToDims(value.shape)};
  tensor.bytes = Allocate(tensor.size_bytes());
  return tensor;
}

const Tensor* NodeMemory::AliasedInput(size_t output) const {
  for (const auto& [from, to] : node_.schema->aliases) {
    const auto input = static_cast<size_t>(to);
    if (from == static_cast<int>(output) && input < inputs_.size() && inputs_[input])
      return &inputs_[input];
  }
  return nullptr;
}

void NodeMemory::Draw(size_t input, float scale, int64_t below) {
  const Tensor& tensor = inputs_[input];
  constexpr int64_t kBlock = 1 << 20;
  std::mt19937 random(static_cast<uint32_t>(input + 1));
  std::normal_distribution<float> normal(0, scale);
  std::vector<std::byte> block(static_cast<size_t>(BytesOf(tensor.dtype, kBlock)));
  for (int64_t k = 0; k < kBlock; ++k) {
    if (tensor.dtype == DType::kFloat32) reinterpret_cast<float*>(block.data())[k] = normal(random);
    if (tensor.dtype == DType::kBFloat16)
      reinterpret_cast<uint16_t*>(block.data())[k] = FloatToBFloat16(normal(random));
    if (tensor.dtype == DType::kInt64)
      reinterpret_cast<int64_t*>(block.data())[k] =
          static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  }
  const auto bytes = static_cast<int64_t>(block.size());
  for (int64_t at = 0; at < tensor.size_bytes(); at += bytes) {
    device_.Upload(tensor.bytes + at, block.data(), std::min(bytes, tensor.size_bytes() - at));
  }
}

void NodeMemory::Launch() {
  KernelContext context{.node = node_,
                        .inputs = inputs_,
                        .outputs = outputs_,
                        .workspace = workspace_,
                        .stream = device_.stream()};
  kernel_.launch(context);
}

double NodeMemory::Time(int repeats, int batches) {
  std::vector<double> seconds;
  Launch();
  device_.CheckLaunch();
  device_.Synchronize();
  for (int batch = 0; batch < batches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < repeats; ++run) Launch();
    device_.Synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    seconds.push_back(took.count() / repeats);
  }
  std::nth_element(seconds.begin(), seconds.begin() + batches / 2, seconds.end());
  return seconds[static_cast<size_t>(batches / 2)];
}

double NodeMemory::bytes() const {
  double total = 0;
  for (const auto* tensors : {&inputs_, &outputs_}) {
    for (const Tensor& tensor : *tensors)
      total += tensor ? static_cast<double>(tensor.size_bytes()) : 0;
  }
  return total;
}

}  // namespace weir
