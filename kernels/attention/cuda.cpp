#include "kernels/attention/cuda.h"

#include <algorithm>

#include "backend/cuda/cuda_stream.h"
#include "graph/error.h"
#include "kernels/attention/config.h"
#include "kernels/attention/cuda_cudnn.h"
#include "kernels/common/workspace_layout.h"

namespace weir {
namespace {

cuda::AttentionShape ShapeOf(const AttentionConfig& a) {
  return {.batch = a.batch,
          .queries = a.queries,
          .keys = a.keys,
          .q_heads = a.q_heads,
          .kv_heads = a.kv_heads,
          .d = a.d,
          .dv = a.dv,
          .window = a.window,
          .runs = a.rows.runs(),
          .run = a.run(),
          .first = {a.FirstPosition(0), a.FirstPosition(1)},
          .causal = a.causal,
          .scale = a.scale,
          .softcap = a.softcap};
}
cuda::AttentionShape ShapeOf(const KernelContext& c) {
  return ShapeOf(
      AttentionConfig(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[2].dims));
}
cuda::AttentionShape ShapeOf(const Node& node) {
  const auto dims = [&](size_t i) { return ToDims(node.in(i)->shape); };
  return ShapeOf(AttentionConfig(node.attributes, dims(0), dims(1), dims(2)));
}

float* FloatsOf(const Tensor& tensor) { return tensor ? tensor.data<float>() : nullptr; }

std::string Unsupported(const Node& node) {
  const int64_t d = ToDims(node.in(0)->shape)[3], dv = ToDims(node.in(2)->shape)[3];
  if (std::max(d, dv) <= cuda::kMostHeadChannels) return "";
  return StrCat("heads of ", std::max(d, dv), " channels; at most ", cuda::kMostHeadChannels);
}

const int64_t* StartsOf(const KernelContext& c, size_t input) {
  return c.has(input) ? c.inputs[input].data<int64_t>() : nullptr;
}

// The library sees whole rows: with starts own kernels run.
int64_t ForwardWorkspace(const Node& node) {
  if (node.in(4) != nullptr) return 0;
  return cuda::CudnnForwardBytes(ShapeOf(node), node.in(0)->dtype);
}

void LaunchAttention(KernelContext& c) {
  const cuda::AttentionShape shape = ShapeOf(c);
  const cuda::AttentionArrays arrays{
      .dtype = c.inputs[0].dtype,
      .q = c.inputs[0].bytes,
      .k = c.inputs[1].bytes,
      .v = c.inputs[2].bytes,
      .sinks = c.has(3) ? c.inputs[3].data<float>() : nullptr,
      .y = c.outputs[0].bytes,
      .lse = c.outputs.size() > 1 ? FloatsOf(c.outputs[1]) : nullptr,
      .starts = StartsOf(c, 4)};
  if (arrays.starts == nullptr && cuda::CudnnForward(CudaQueue(c), shape, arrays, c.workspace)) return;
  cuda::AttentionForward(shape, arrays, CudaQueue(c).stream);
}

// cuDNN adds dq in any order; with `deterministic` = 1, as with starts, own kernels run.
bool IsOwn(const Node& node) {
  return node.attributes.Int("deterministic", 0) != 0 || node.in(8) != nullptr;
}

struct BackwardBuffers {
  float* delta;
  std::span<std::byte> library;
  BackwardBuffers(const cuda::AttentionShape& s, int64_t library_bytes, WorkspaceLayout& layout)
      : delta(layout.Take<float>(s.batch * s.q_heads * s.queries)) {
    library = {layout.Take<std::byte>(library_bytes), static_cast<size_t>(library_bytes)};
  }
};

int64_t LibraryBytes(const cuda::AttentionShape& shape, DType dtype, const Node& node) {
  return IsOwn(node) ? 0 : cuda::CudnnBackwardBytes(shape, dtype);
}

int64_t BackwardWorkspace(const Node& node) {
  const cuda::AttentionShape shape = ShapeOf(node);
  WorkspaceLayout layout(nullptr);
  BackwardBuffers(shape, LibraryBytes(shape, node.in(0)->dtype, node), layout);
  return layout.bytes();
}

void LaunchAttentionGradient(KernelContext& c) {
  const cuda::AttentionShape shape = ShapeOf(c);
  const DType dtype = c.inputs[0].dtype;
  WorkspaceLayout layout(c.workspace.data());
  const BackwardBuffers b(shape, LibraryBytes(shape, dtype, c.node), layout);
  const cuda::AttentionArrays arrays{.dtype = dtype,
                                     .q = c.inputs[0].bytes,
                                     .k = c.inputs[1].bytes,
                                     .v = c.inputs[2].bytes,
                                     .sinks = c.has(6) ? c.inputs[6].data<float>() : nullptr,
                                     .y = c.inputs[3].bytes,
                                     .lse = c.inputs[4].data<float>(),
                                     .starts = StartsOf(c, 8)};
  const cuda::AttentionGradients gradients{
      .dy = c.inputs[5].bytes,
      .delta = b.delta,
      .dq = c.outputs[0].bytes,
      .dk = c.outputs[1].bytes,
      .dv = c.outputs[2].bytes,
      .dsinks = c.outputs.size() > 3 ? FloatsOf(c.outputs[3]) : nullptr,
      .add_dsinks = c.has(7)};
  CudaStream& queue = CudaQueue(c);
  const bool library = !IsOwn(c.node) &&
                       cuda::CudnnBackward(queue, shape, arrays, gradients, b.library);
  if (library && gradients.dsinks == nullptr) return;
  cuda::AttentionDelta(shape, arrays, gradients, queue.stream);
  if (!library) {
    cuda::AttentionKeyGradient(shape, arrays, gradients, queue.stream);
    cuda::AttentionQueryGradient(shape, arrays, gradients, queue.stream);
  }
  if (gradients.dsinks != nullptr)
    cuda::AttentionSinkGradient(shape, arrays, gradients, queue.stream);
}

}  // namespace

const Kernel& AttentionCudaKernel() {
  static const Kernel kernel{
      .launch = LaunchAttention, .workspace_bytes = ForwardWorkspace, .unsupported = Unsupported};
  return kernel;
}

const Kernel& AttentionGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchAttentionGradient,
                             .workspace_bytes = BackwardWorkspace,
                             .unsupported = Unsupported};
  return kernel;
}

}  // namespace weir
