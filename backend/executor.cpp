#include <cstring>
#include <optional>
#include <utility>

#include "backend/communicator.h"
#include "backend/lane_trace.h"
#include "backend/plan.h"
#include "backend/profiler.h"
#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

constexpr int kPoison = 0xff;  // NaN as any float, -1 as any integer

class Arena {
 public:
  Arena(Device& device, Memory memory, int64_t bytes)
      : device_(device), memory_(memory), size_(bytes), bytes_(Allocate(device, memory, bytes)) {}
  ~Arena() {
    if (bytes_ == nullptr) return;
    memory_ == Memory::kHost ? device_.FreeHost(bytes_, size_) : device_.Free(bytes_, size_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::byte* at(int64_t offset) const { return bytes_ + offset; }

 private:
  static std::byte* Allocate(Device& device, Memory memory, int64_t bytes) {
    if (memory == Memory::kDevice) return device.Allocate(bytes);
    return bytes == 0 ? nullptr : device.AllocateHost(bytes);
  }

  Device& device_;
  const Memory memory_;
  const int64_t size_;
  std::byte* const bytes_;
};

struct Launch {
  const Node* node;
  const Kernel* kernel;
  std::vector<Tensor> inputs, outputs;
  std::span<std::byte> workspace;
  Communicator* communicator;
};

}  // namespace

struct Executor::Impl {
  Impl(const Plan& p, const ExecutorOptions& o)
      : plan(p), options(o), device(o.device ? o.device : MakeDevice(p.device)), arena(*device, Memory::kDevice, p.arena_bytes),
        host(*device, Memory::kHost, p.host_arena_bytes) {
    WEIR_CHECK(device->kind() == p.device, ErrorCode::kInternal, "a plan for ", DeviceName(p.device), " on a ",
               DeviceName(device->kind()), " device");
  }

  ~Impl() {
    try {
      device->Synchronize();  // a copy may still be under way when a step failed
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): what failed was told when it was used
    }
  }

  std::span<std::byte> Bytes(int index) const {
    const PlannedBuffer& buffer = plan.buffers[static_cast<size_t>(index)];
    return {(buffer.memory == Memory::kHost ? host : arena).at(buffer.offset), static_cast<size_t>(buffer.bytes)};
  }

  bool IsOnHost(const Value& value) const {
    const auto it = plan.buffer_of.find(&value);
    return it != plan.buffer_of.end() && plan.buffers[static_cast<size_t>(it->second)].memory == Memory::kHost;
  }

  Tensor TensorAt(const Value& value) const {
    const auto it = plan.buffer_of.find(&value);
    WEIR_CHECK(it != plan.buffer_of.end(), ErrorCode::kInternal, "'", value.name, "' has no memory in this plan");
    return {.bytes = Bytes(it->second).data(), .dtype = value.dtype, .dims = ToDims(value.shape)};
  }

  void FillConstant(const Value& value) const {
    WEIR_CHECK(value.data != nullptr, ErrorCode::kInvalidModel, "the bytes of frozen tensor '", value.name,
               "' are missing; add its weights file");
    const Tensor tensor = TensorAt(value);
    const TensorData& data = *value.data;
    if (data.dtype() == value.dtype) {
      device->Upload(tensor.bytes, data.bytes().data(), static_cast<int64_t>(data.bytes().size()));
      return;
    }
    WEIR_CHECK(value.dtype == DType::kFloat32 && IsFloat(data.dtype()), ErrorCode::kInternal, "constant '",
               value.name, "' is planned as ", DTypeName(value.dtype), " and stored as ", DTypeName(data.dtype()));
    std::vector<float> floats(static_cast<size_t>(data.elements()));
    data.ReadFloats(0, floats);
    device->Upload(tensor.bytes, floats.data(), tensor.size_bytes());
  }

  void AddLaunch(const PlannedStep& step) {
    Launch launch{.node = step.node, .kernel = FindKernel(plan.device, *step.node->schema),
                  .inputs = {}, .outputs = {}, .workspace = {}, .communicator = options.communicator};
    if (options.communicator != nullptr && step.node->attributes.Has("group")) {
      launch.communicator = &options.communicator->Group(step.node->attributes.String("group", ""));
    }
    for (const Value* value : step.node->inputs) launch.inputs.push_back(value ? TensorAt(*value) : Tensor{});
    for (const Value* value : step.node->outputs) launch.outputs.push_back(value ? TensorAt(*value) : Tensor{});
    if (step.workspace >= 0) launch.workspace = Bytes(step.workspace);
    launches.push_back(std::move(launch));
  }

  // Overwrites what is born (`born`) or has died at step `s`. What kBegin made may serve another
  // micro-batch, so it never dies here.
  void Poison(int s, bool born) const {
    for (size_t i = 0; i < plan.buffers.size(); ++i) {
      const PlannedBuffer& buffer = plan.buffers[i];
      if (buffer.persistent || (born ? buffer.first_step : buffer.last_step) != s) continue;
      if (!born && launches[static_cast<size_t>(buffer.first_step)].node->phase == Phase::kBegin) continue;
      const auto bytes = Bytes(static_cast<int>(i));
      if (buffer.memory == Memory::kHost) {
        std::memset(bytes.data(), kPoison, bytes.size());
      } else {
        device->Fill(bytes.data(), kPoison, static_cast<int64_t>(bytes.size()));
      }
    }
  }

  void RunStep(size_t s) {
    const Launch& launch = launches[s];
    KernelContext context{.node = *launch.node, .inputs = launch.inputs, .outputs = launch.outputs,
                          .workspace = launch.workspace, .stream = device->stream(),
                          .communicator = launch.communicator};
    if (launch.communicator != nullptr) launch.communicator->ThrowIfAborted();
    const ProfilerRange range(*launch.node);
    if (options.watch) Enter(parts[s]);
    try {
      if (tracing) {
        SetLaneNode(*launch.node);
        device->Mark(2 * traced.size());
      }
      launch.kernel->launch(context);
      device->CheckLaunch();
      if (tracing) {
        device->Mark(2 * traced.size() + 1);
        traced.push_back(launch.node);
      }
    } catch (Error& error) {
      if (launch.communicator != nullptr && error.code() != ErrorCode::kCommError) AddAbort(*launch.communicator, error);
      error.AddContext(StrCat("running ", launch.node->op(), launch.node->source.empty() ? "" : " for ",
                              launch.node->source));
      throw;
    }
  }

  // The launches from here on are `part`'s; nullopt ends the last one's.
  void Enter(std::optional<StepPart> part) {
    if (tracing || (!edges.empty() && edges.back() == part)) return;
    device->Mark(edges.size());
    edges.push_back(part);
  }

  // What other ranks leave half done can look like an error of this one. This one's own abort, by transfers that its error left in
  // flight, is not the cause.
  static void AddAbort(const Communicator& communicator, Error& error) {
    try {
      communicator.ThrowIfAborted();
    } catch (const PeerFailure&) {
      throw;
    } catch (const Error& own) {
      error.AddContext(own.message());
    }
  }

  const Plan& plan;
  const ExecutorOptions options;
  const std::shared_ptr<Device> device;
  const Arena arena, host;
  std::vector<Launch> launches;
  bool tracing = false;
  std::vector<const Node*> traced;
  std::vector<StepPart> parts;                  // of each launch
  std::vector<std::optional<StepPart>> edges;  // what begins at each mark
  std::vector<ExpertLoad> loads;
};

Executor::Executor(const Plan& plan, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(plan, options)) {
  for (const PlannedStep& step : plan.steps) impl_->AddLaunch(step);
  if (options.watch) impl_->parts = PartsOf(plan);
  for (const auto& [value, index] : plan.buffer_of) {
    if (value->role == Role::kConstant) impl_->FillConstant(*value);
  }
  if (!options.poison) return;
  for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) impl_->Poison(s, /*born=*/true);
}

Executor::~Executor() = default;

Tensor Executor::TensorOf(const Value& value) const { return impl_->TensorAt(value); }

void Executor::Write(const Value& value, const void* host, int64_t bytes) {
  const Tensor tensor = impl_->TensorAt(value);
  WEIR_CHECK(bytes == tensor.size_bytes(), ErrorCode::kInternal, "writing ", bytes, " bytes into '", value.name, "' of ",
             tensor.size_bytes());
  if (!impl_->IsOnHost(value)) return impl_->device->Upload(tensor.bytes, host, bytes);
  impl_->device->Synchronize();
  if (bytes > 0) std::memcpy(tensor.bytes, host, static_cast<size_t>(bytes));
}

void Executor::Read(const Value& value, void* host, int64_t bytes) const {
  const Tensor tensor = impl_->TensorAt(value);
  WEIR_CHECK(bytes == tensor.size_bytes(), ErrorCode::kInternal, "reading ", bytes, " bytes of '", value.name, "' of ",
             tensor.size_bytes());
  if (!impl_->IsOnHost(value)) return impl_->device->Download(host, tensor.bytes, bytes);
  impl_->device->Synchronize();
  if (bytes > 0) std::memcpy(host, tensor.bytes, static_cast<size_t>(bytes));
}

void Executor::Synchronize() const { impl_->device->Synchronize(); }

void Executor::StartTrace() {
  impl_->traced.clear();
  impl_->edges.clear();  // the marks are the trace's
  impl_->tracing = true;
  StartLanes();
}

std::vector<TraceSpan> Executor::StopTrace() {
  impl_->tracing = false;
  impl_->device->Synchronize();
  StopLanes();
  std::vector<TraceSpan> spans;
  for (size_t i = 0; i < impl_->traced.size(); ++i) {
    spans.push_back({impl_->traced[i], impl_->device->MarkSeconds(2 * i), impl_->device->MarkSeconds(2 * i + 1)});
  }
  return spans;
}

StepSplit Executor::TakeSplit() {
  StepSplit split;
  const auto& edges = impl_->edges;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    if (edges[i]) split[*edges[i]] += static_cast<float>(impl_->device->MarkSeconds(i + 1) - impl_->device->MarkSeconds(i));
  }
  impl_->edges.clear();
  return split;
}

std::vector<ExpertLoad> Executor::TakeLoads() { return std::exchange(impl_->loads, {}); }

void Executor::Run(Phase phase) {
  std::optional<ExpertLoadCollector> collector;
  if (impl_->options.watch && phase == Phase::kForward) collector.emplace(impl_->loads);
  for (size_t s = 0; s < impl_->launches.size(); ++s) {
    if (impl_->launches[s].node->phase != phase) continue;
    if (impl_->options.poison) impl_->Poison(static_cast<int>(s), /*born=*/true);
    impl_->RunStep(s);
    if (impl_->options.poison) impl_->Poison(static_cast<int>(s), /*born=*/false);
  }
  if (impl_->options.watch) impl_->Enter(std::nullopt);
}

void Executor::Run() {
  for (Phase phase : {Phase::kBegin, Phase::kForward, Phase::kBackward, Phase::kNorm, Phase::kUpdate}) Run(phase);
}

}  // namespace weir
