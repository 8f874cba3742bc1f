#include "kernels/attention/cuda_cudnn.h"

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_stream.h"

#ifdef WEIR_HAS_CUDNN

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cudnn.h"
#include "kernels/common/workspace_layout.h"

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

// A run of queries and the keys that some of them see: a mask aligned at the end of both is then the causal one.
struct Part {
  int64_t first_query, queries, first_key, keys;
  RowSpan key_rows() const { return {first_key, first_key + keys}; }
};
Part PartOf(const AttentionShape& s, int64_t run) {
  const int64_t first = s.window > 0 ? std::max<int64_t>(0, s.first[run] - s.window + 1) : 0;
  return {run * s.run, s.run, first, (s.causal ? s.first[run] + s.run : s.keys) - first};
}

class Maker {
 public:
  Maker(const AttentionShape& s, const Part& part, bool sinks)
      : s_(s), part_(part), sinks_(sinks), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  Plan Forward(cudnnHandle_t handle, bool stats) {
    auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(stats);
    SetMask(options);
    if (sinks_) options.set_sink_token(Floats(kSink, {1, s_.q_heads, 1, 1}, {s_.q_heads, 1, 1, 1}));
    auto [y, lse] = graph_->sdpa(In(kQ, Queries(s_.d)), In(kK, Keys(s_.d)), In(kV, Keys(s_.dv)), options);
    Out(y, kY, Queries(s_.dv));
    if (stats) {
      lse->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
      lse->set_dim(StatsDims()).set_stride(StatsStrides());
    }
    return Build(handle);
  }

  // Probabilities come from lse, which holds the sinks: the graph need not know of them.
  Plan Backward(cudnnHandle_t handle) {
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_gradient");
    SetMask(options);
    const Tensor4 lse = Floats(kStats, StatsDims(), StatsStrides());
    auto [dq, dk, dv] =
        graph_->sdpa_backward(In(kQ, Queries(s_.d)), In(kK, Keys(s_.d)), In(kV, Keys(s_.dv)),
                              In(kY, Queries(s_.dv)), In(kDy, Queries(s_.dv)), lse, options);
    Out(dq, kDq, Queries(s_.d));
    Out(dk, kDk, KeyGradients(s_.d));
    Out(dv, kDv, KeyGradients(s_.dv));
    return Build(handle);
  }

 private:
  // Rows of an array [batch,in_array,heads,channels].
  struct Rows {
    int64_t rows, in_array, heads, channels;
  };
  Rows Queries(int64_t channels) const { return {part_.queries, s_.queries, s_.q_heads, channels}; }
  Rows Keys(int64_t channels) const { return {part_.keys, s_.keys, s_.kv_heads, channels}; }
  // Those of the last run go where they belong, of a run before it into a buffer of their own.
  Rows KeyGradients(int64_t channels) const {
    const bool last = part_.first_query + part_.queries == s_.queries;
    return {part_.keys, last ? s_.keys : part_.keys, s_.kv_heads, channels};
  }

  template <class Options>
  void SetMask(Options& options) const {
    options.set_attn_scale(s_.scale);
    if (s_.causal) {
      const bool square = part_.queries == part_.keys;
      options.set_diagonal_alignment(square ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
          .set_diagonal_band_right_bound(0);
    }
    if (s_.window > 0 && s_.window < part_.keys)
      options.set_diagonal_band_left_bound(static_cast<int>(s_.window));
  }
  std::vector<int64_t> Dims(const Rows& r) const { return {s_.batch, r.heads, r.rows, r.channels}; }
  static std::vector<int64_t> Strides(const Rows& r) {
    return {r.in_array * r.heads * r.channels, r.channels, r.heads * r.channels, 1};
  }
  std::vector<int64_t> StatsDims() const { return {s_.batch, s_.q_heads, part_.queries, 1}; }
  std::vector<int64_t> StatsStrides() const { return {s_.q_heads * s_.queries, s_.queries, 1, 1}; }
  Tensor4 In(Uid uid, const Rows& rows) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name("t" + std::to_string(uid))
                              .set_uid(uid)
                              .set_dim(Dims(rows))
                              .set_stride(Strides(rows)));
  }
  Tensor4 Floats(Uid uid, const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_name("t" + std::to_string(uid))
                              .set_uid(uid)
                              .set_dim(dims)
                              .set_stride(strides)
                              .set_data_type(fe::DataType_t::FLOAT));
  }
  void Out(const Tensor4& tensor, Uid uid, const Rows& rows) const {
    tensor->set_output(true).set_uid(uid).set_dim(Dims(rows)).set_stride(Strides(rows));
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
  const Part part_;
  const bool sinks_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

// Plans are made once per shape.
template <class Make>
const Plan* PlanFor(const CudaStream& queue, const AttentionShape& s, const Part& part, int64_t flags,
                    size_t workspace, const Make& make) {
  using Key = std::array<int64_t, 14>;
  static std::map<Key, Plan> plans;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  int64_t scale = 0;
  static_assert(sizeof(s.scale) <= sizeof(scale));
  std::memcpy(&scale, &s.scale, sizeof(s.scale));
  const Key key = {reinterpret_cast<int64_t>(queue.stream),
                   s.batch,
                   s.queries,
                   s.keys,
                   part.first_query,
                   part.keys,
                   s.q_heads,
                   s.kv_heads,
                   s.d,
                   s.dv,
                   s.window,
                   s.causal,
                   scale,
                   flags};
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
         s.dv > 0 && s.batch * s.queries > 0;
}

bool Execute(const CudaStream& queue, const Plan& plan, std::unordered_map<int64_t, void*> arrays,
             std::span<std::byte> workspace) {
  return plan.graph->execute(Handle(queue), arrays, workspace.data()).is_good();
}

void* Mutable(const void* data) { return const_cast<void*>(data); }

// Of a bfloat16 array with rows of `width` elements.
void* RowFrom(const void* data, int64_t row, int64_t width) { return static_cast<std::byte*>(Mutable(data)) + row * width * 2; }
void* QueriesOf(const Part& part, const void* data, int64_t width) { return RowFrom(data, part.first_query, width); }
void* KeysOf(const Part& part, const void* data, int64_t width) { return RowFrom(data, part.first_key, width); }

// Where the library works, and dk and dv of the first of two runs, which see fewer keys than those of the second.
struct BackwardBuffers {
  BackwardBuffers(const AttentionShape& s, int64_t library, WorkspaceLayout& layout) {
    const int64_t keys = s.runs == 1 ? 0 : s.batch * (s.causal ? s.keys / 2 : s.keys) * s.kv_heads;
    dk = layout.Take<uint16_t>(keys * s.d);
    dv = layout.Take<uint16_t>(keys * s.dv);
    workspace = {layout.Take<std::byte>(library), static_cast<size_t>(library)};
  }
  uint16_t *dk, *dv;  // bfloat16
  std::span<std::byte> workspace;
};

// dq in float32, two numbers a row, with fewer kv heads dk and dv of every query head; and a
// quarter for the library's padding. What it asks for beyond that, it does not get.
int64_t LibraryBytes(const AttentionShape& s) {
  const auto padded = [](int64_t rows) { return (rows + 255) / 256 * 256; };
  const int64_t heads = s.q_heads > s.kv_heads ? 4 * (s.d + s.dv) : 0;
  return s.batch * s.q_heads * (padded(s.run) * (4 * s.d + 16) + padded(s.keys) * heads) / 4 * 5 + (int64_t{32} << 20);
}

}  // namespace

std::string CudnnStatus() { return StatusText(); }

bool CudnnForward(CudaStream& queue, const AttentionShape& s, const AttentionArrays& a,
                  std::span<std::byte> workspace) {
  if (!Suits(s, a.dtype)) return false;
  const bool stats = a.lse != nullptr, sinks = a.sinks != nullptr;
  std::array<const Plan*, 2> plans{};
  for (int64_t run = 0; run < s.runs; ++run) {
    const Part part = PartOf(s, run);
    plans[run] = PlanFor(queue, s, part, stats | sinks << 1, workspace.size(),
                         [&](cudnnHandle_t handle) { return Maker(s, part, sinks).Forward(handle, stats); });
    if (plans[run] == nullptr) return false;
  }
  for (int64_t run = 0; run < s.runs; ++run) {
    const Part part = PartOf(s, run);
    std::unordered_map<int64_t, void*> arrays = {{kQ, QueriesOf(part, a.q, s.q_heads * s.d)},
                                                 {kK, KeysOf(part, a.k, s.kv_heads * s.d)},
                                                 {kV, KeysOf(part, a.v, s.kv_heads * s.dv)},
                                                 {kY, QueriesOf(part, a.y, s.q_heads * s.dv)}};
    if (stats) arrays[kStats] = a.lse + part.first_query;
    if (sinks) arrays[kSink] = Mutable(a.sinks);
    if (!Execute(queue, *plans[run], std::move(arrays), workspace)) return false;
  }
  return true;
}

bool CudnnBackward(CudaStream& queue, const AttentionShape& s, const AttentionArrays& a,
                   const AttentionGradients& g, std::span<std::byte> workspace) {
  if (!Suits(s, a.dtype)) return false;
  WorkspaceLayout layout(workspace.data());
  const BackwardBuffers buffers(s, LibraryBytes(s), layout);
  std::array<const Plan*, 2> plans{};
  for (int64_t run = 0; run < s.runs; ++run) {
    const Part part = PartOf(s, run);
    plans[run] = PlanFor(queue, s, part, 4, buffers.workspace.size(),
                         [&](cudnnHandle_t handle) { return Maker(s, part, false).Backward(handle); });
    if (plans[run] == nullptr) return false;
  }
  for (int64_t run = 0; run < s.runs; ++run) {
    const Part part = PartOf(s, run);
    const bool first = run + 1 < s.runs;
    if (!Execute(queue, *plans[run],
                 {{kQ, QueriesOf(part, a.q, s.q_heads * s.d)},
                  {kK, KeysOf(part, a.k, s.kv_heads * s.d)},
                  {kV, KeysOf(part, a.v, s.kv_heads * s.dv)},
                  {kY, QueriesOf(part, a.y, s.q_heads * s.dv)},
                  {kDy, QueriesOf(part, g.dy, s.q_heads * s.dv)},
                  {kStats, a.lse + part.first_query},
                  {kDq, QueriesOf(part, g.dq, s.q_heads * s.d)},
                  {kDk, first ? buffers.dk : KeysOf(part, g.dk, s.kv_heads * s.d)},
                  {kDv, first ? buffers.dv : KeysOf(part, g.dv, s.kv_heads * s.dv)}},
                 buffers.workspace))
      return false;
  }
  if (s.runs == 1) return true;
  const auto add = [&](int64_t channels, const void* from, void* to) {
    AddKeyRows(a.dtype, {s.batch, s.keys, s.kv_heads * channels, PartOf(s, 1).key_rows(), PartOf(s, 0).key_rows()}, from, to, queue.stream);
  };
  add(s.d, buffers.dk, g.dk);
  add(s.dv, buffers.dv, g.dv);
  return true;
}

int64_t CudnnForwardBytes(const AttentionShape& s, DType dtype) {
  return Suits(s, dtype) ? int64_t{16} << 20 : 0;
}

int64_t CudnnBackwardBytes(const AttentionShape& s, DType dtype) {
  if (!Suits(s, dtype)) return 0;
  WorkspaceLayout layout(nullptr);
  BackwardBuffers(s, LibraryBytes(s), layout);
  return layout.bytes();
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
