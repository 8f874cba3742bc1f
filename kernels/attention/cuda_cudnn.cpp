#include "kernels/attention/cuda_cudnn.h"

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_stream.h"

#ifdef WEIR_HAS_CUDNN

#include <dlfcn.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cudnn.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace weir::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kY, kStats, kSink, kDy, kDq, kDk, kDv };

// By name, else beside the cuBLASLt at hand, where toolkits and pip put it.
void* OpenNear(const char* name, std::initializer_list<const char*> folders) {
  if (void* handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL)) return handle;
  Dl_info info{};
  if (dladdr(dlsym(CublasLtLibrary(), "cublasLtCreate"), &info) == 0 ||
      info.dli_fname == nullptr)
    return nullptr;
  const std::string path(info.dli_fname), here = path.substr(0, path.rfind('/') + 1);
  for (const char* folder : folders) {
    if (void* handle = dlopen((here + folder + name).c_str(), RTLD_NOW | RTLD_GLOBAL))
      return handle;
  }
  return nullptr;
}

std::string& StatusText() {
  static std::string text = "not tried yet";
  return text;
}

// The frontend asks the loader for a runtime by name: the one it gets must be of our version.
void* OpenLibrary() {
  if (OpenNear("libcudart.so.13", {"", "../../cuda_runtime/lib/"}) != nullptr) {
    setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "libcudart.so.13", /*overwrite=*/0);
  }
  void* library = OpenNear("libcudnn.so.9", {"", "../../cudnn/lib/"});
  if (library == nullptr) StatusText() = "libcudnn.so.9 not found";
  return library;
}

cudnnHandle_t Handle(const CudaStream& queue) {
  static std::map<CUstream_st*, cudnnHandle_t> handles;
  const auto [it, fresh] = handles.try_emplace(queue.stream, nullptr);
  if (!fresh) return it->second;
  if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = OpenLibrary();
  if (fe::cudnn_dlhandle == nullptr) return nullptr;
  cudnnHandle_t handle = nullptr;
  if (fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
    StatusText() = "cuDNN does not start";
  if (handle == nullptr || fe::detail::set_stream(handle, queue.stream) != CUDNN_STATUS_SUCCESS)
    return nullptr;
  StatusText() = "cuDNN " + std::to_string(fe::detail::get_backend_version());
  return it->second = handle;
}

using Tensor4 = std::shared_ptr<fe::graph::Tensor_attributes>;

// A compiled graph; null when cuDNN has no engine for it.
struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t bytes = 0;
};

class Maker {
 public:
  Maker(const AttentionShape& s, bool sinks)
      : s_(s), sinks_(sinks), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Plan Forward(cudnnHandle_t handle, bool stats) {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(stats);
    SetMask(options);
    if (sinks_) options.set_sink_token(Floats(kSink, {1, s_.q_heads, 1, 1}, {s_.q_heads, 1, 1, 1}));
    auto [y, lse] = graph_->sdpa(In(kQ, s_.q_heads, s_.d), In(kK, s_.kv_heads, s_.d),
                                 In(kV, s_.kv_heads, s_.dv), options);
    Out(y, kY, s_.q_heads, s_.dv);
    if (stats) {
      lse->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
      lse->set_dim({s_.batch, s_.q_heads, s_.sequence, 1})
          .set_stride({s_.q_heads * s_.sequence, s_.sequence, 1, 1});
    }
    return Build(handle);
  }

  // Probabilities come from lse, which holds the sinks: the graph need not know of them.
  Plan Backward(cudnnHandle_t handle) {
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_gradient");
    SetMask(options);
    const Tensor4 lse = Floats(kStats, {s_.batch, s_.q_heads, s_.sequence, 1},
                               {s_.q_heads * s_.sequence, s_.sequence, 1, 1});
    auto [dq, dk, dv] = graph_->sdpa_backward(In(kQ, s_.q_heads, s_.d), In(kK, s_.kv_heads, s_.d),
                                              In(kV, s_.kv_heads, s_.dv), In(kY, s_.q_heads, s_.dv),
                                              In(kDy, s_.q_heads, s_.dv), lse, options);
    Out(dq, kDq, s_.q_heads, s_.d);
    Out(dk, kDk, s_.kv_heads, s_.d);
    Out(dv, kDv, s_.kv_heads, s_.dv);
    return Build(handle);
  }

 private:
  template <class Options>
  void SetMask(Options& options) const {
    options.set_attn_scale(s_.scale);
    if (s_.causal) {
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_right_bound(0);
    }
    if (s_.window > 0 && s_.window < s_.sequence)
      options.set_diagonal_band_left_bound(static_cast<int>(s_.window));
  }
  std::vector<int64_t> Dims(int64_t heads, int64_t channels) const {
    return {s_.batch, heads, s_.sequence, channels};
  }
  std::vector<int64_t> Strides(int64_t heads, int64_t channels) const {
    return {s_.sequence * heads * channels, channels, heads * channels, 1};
  }
  Tensor4 In(Uid uid, int64_t heads, int64_t channels) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name("t" + std::to_string(uid))
                              .set_uid(uid)
                              .set_dim(Dims(heads, channels))
                              .set_stride(Strides(heads, channels)));
  }
  Tensor4 Floats(Uid uid, const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name("t" + std::to_string(uid))
                              .set_uid(uid)
                              .set_dim(dims)
                              .set_stride(strides)
                              .set_data_type(fe::DataType_t::FLOAT));
  }
  void Out(const Tensor4& tensor, Uid uid, int64_t heads, int64_t channels) const {
    tensor->set_output(true)
        .set_uid(uid)
        .set_dim(Dims(heads, channels))
        .set_stride(Strides(heads, channels));
  }
  Plan Build(cudnnHandle_t handle) {
    Plan plan;
    auto built = graph_->build(handle, {fe::HeurMode_t::A});
    if (built.is_bad()) StatusText() += "; refused: " + built.get_message();
    if (built.is_bad() || graph_->get_workspace_size(plan.bytes).is_bad()) return {};
    plan.graph = graph_;
    return plan;
  }

  const AttentionShape& s_;
  const bool sinks_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

// Plans are made once per shape.
template <class Make>
const Plan* PlanFor(const CudaStream& queue, const AttentionShape& s, int64_t flags,
                    size_t workspace, const Make& make) {
  using Key = std::array<int64_t, 12>;
  static std::map<Key, Plan> plans;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int64_t scale = 0;
  static_assert(sizeof(s.scale) <= sizeof(scale));
  std::memcpy(&scale, &s.scale, sizeof(s.scale));
  const Key key = {reinterpret_cast<int64_t>(queue.stream),
                   s.batch,
                   s.sequence,
                   s.q_heads,
                   s.kv_heads,
                   s.d,
                   s.dv,
                   s.window,
                   s.causal,
                   scale,
                   flags,
                   0};
  const auto [it, fresh] = plans.try_emplace(key);
  if (fresh) {
    try {
      if (cudnnHandle_t handle = Handle(queue)) it->second = make(handle);
    } catch (const std::exception& error) {  // a library too old or too new for these headers
      StatusText() += std::string("; failed: ") + error.what();
      it->second = {};
    }
  }
  const Plan& plan = it->second;
  if (fresh && plan.bytes > static_cast<int64_t>(workspace)) {
    StatusText() += "; wants " + std::to_string(plan.bytes) + " bytes of workspace, planned " +
                    std::to_string(workspace);
  }
  return plan.graph != nullptr && plan.bytes <= static_cast<int64_t>(workspace) ? &plan : nullptr;
}

// What own kernels alone can do is left to them.
bool Suits(const AttentionShape& s, DType dtype) {
  return dtype == DType::kBFloat16 && s.softcap == 0 && s.d % 8 == 0 && s.dv % 8 == 0 && s.d > 0 &&
         s.dv > 0 && s.batch * s.sequence > 0;
}

bool Execute(const CudaStream& queue, const Plan& plan, std::unordered_map<int64_t, void*> arrays,
             std::span<std::byte> workspace) {
  return plan.graph->execute(Handle(queue), arrays, workspace.data()).is_good();
}

void* Mutable(const void* data) { return const_cast<void*>(data); }

}  // namespace

std::string CudnnStatus() { return StatusText(); }

bool CudnnForward(CudaStream& queue, const AttentionShape& s, const AttentionArrays& a,
                  std::span<std::byte> workspace) {
  if (!Suits(s, a.dtype)) return false;
  const bool stats = a.lse != nullptr, sinks = a.sinks != nullptr;
  const Plan* plan =
      PlanFor(queue, s, stats | sinks << 1, workspace.size(),
              [&](cudnnHandle_t handle) { return Maker(s, sinks).Forward(handle, stats); });
  if (plan == nullptr) return false;
  std::unordered_map<int64_t, void*> arrays = {
      {kQ, Mutable(a.q)}, {kK, Mutable(a.k)}, {kV, Mutable(a.v)}, {kY, a.y}};
  if (stats) arrays[kStats] = a.lse;
  if (sinks) arrays[kSink] = Mutable(a.sinks);
  return Execute(queue, *plan, std::move(arrays), workspace);
}

bool CudnnBackward(CudaStream& queue, const AttentionShape& s, const AttentionArrays& a,
                   const AttentionGradients& g, std::span<std::byte> workspace) {
  if (!Suits(s, a.dtype)) return false;
  const Plan* plan = PlanFor(queue, s, 4, workspace.size(), [&](cudnnHandle_t handle) {
    return Maker(s, false).Backward(handle);
  });
  if (plan == nullptr) return false;
  return Execute(queue, *plan,
                 {{kQ, Mutable(a.q)},
                  {kK, Mutable(a.k)},
                  {kV, Mutable(a.v)},
                  {kY, a.y},
                  {kDy, Mutable(g.dy)},
                  {kStats, a.lse},
                  {kDq, g.dq},
                  {kDk, g.dk},
                  {kDv, g.dv}},
                 workspace);
}

int64_t CudnnForwardBytes(const AttentionShape& s, DType dtype) {
  return Suits(s, dtype) ? int64_t{16} << 20 : 0;
}

// dq in float32, two numbers a row, with fewer kv heads dk and dv of every query head; and a
// quarter for the library's padding. What it asks for beyond that, it does not get.
int64_t CudnnBackwardBytes(const AttentionShape& s, DType dtype) {
  if (!Suits(s, dtype)) return 0;
  const int64_t rows = s.batch * s.q_heads * ((s.sequence + 255) / 256 * 256);
  const int64_t heads = s.q_heads > s.kv_heads ? 4 * (s.d + s.dv) : 0;
  return rows * (4 * s.d + 16 + heads) / 4 * 5 + (int64_t{32} << 20);
}

}  // namespace weir::cuda

#else

namespace weir::cuda {

std::string CudnnStatus() { return "built without cuDNN's headers"; }

bool CudnnForward(CudaStream&, const AttentionShape&, const AttentionArrays&,
                  std::span<std::byte>) {
  return false;
}
bool CudnnBackward(CudaStream&, const AttentionShape&, const AttentionArrays&,
                   const AttentionGradients&, std::span<std::byte>) {
  return false;
}
int64_t CudnnForwardBytes(const AttentionShape&, DType) { return 0; }
int64_t CudnnBackwardBytes(const AttentionShape&, DType) { return 0; }

}  // namespace weir::cuda

#endif
