#include "kernels/attention/cuda.h"

#include <algorithm>

#include "backend/cuda/cuda_stream.h"
#include "graph/error.h"
#include "kernels/attention/config.h"

namespace weir {
namespace {

cuda::AttentionShape ShapeOf(const KernelContext& c) {
  const AttentionConfig a(c.attributes(), c.inputs[0].dims, c.inputs[1].dims, c.inputs[2].dims);
  return {.batch = a.batch, .sequence = a.sequence, .q_heads = a.q_heads, .kv_heads = a.kv_heads, .d = a.d, .dv = a.dv,
          .window = a.window, .causal = a.causal, .scale = a.scale, .softcap = a.softcap};
}

float* FloatsOf(const Tensor& tensor) { return tensor ? tensor.data<float>() : nullptr; }

std::string Unsupported(const Node& node) {
  const int64_t d = ToDims(node.in(0)->shape)[3], dv = ToDims(node.in(2)->shape)[3];
  if (std::max(d, dv) <= cuda::kMostHeadChannels) return "";
  return StrCat("heads of ", std::max(d, dv), " channels; at most ", cuda::kMostHeadChannels);
}

void LaunchAttention(KernelContext& c) {
  cuda::AttentionForward(ShapeOf(c),
                         {.dtype = c.inputs[0].dtype, .q = c.inputs[0].bytes, .k = c.inputs[1].bytes,
                          .v = c.inputs[2].bytes, .sinks = c.has(3) ? c.inputs[3].data<float>() : nullptr,
                          .y = c.outputs[0].bytes, .lse = c.outputs.size() > 1 ? FloatsOf(c.outputs[1]) : nullptr},
                         CudaQueue(c).stream);
}

void LaunchAttentionGradient(KernelContext& c) {
  cuda::AttentionBackward(ShapeOf(c),
                          {.dtype = c.inputs[0].dtype, .q = c.inputs[0].bytes, .k = c.inputs[1].bytes,
                           .v = c.inputs[2].bytes, .sinks = c.has(6) ? c.inputs[6].data<float>() : nullptr,
                           .y = c.inputs[3].bytes, .lse = c.inputs[4].data<float>()},
                          {.dy = c.inputs[5].bytes, .delta = reinterpret_cast<float*>(c.workspace.data()),
                           .dq = c.outputs[0].bytes, .dk = c.outputs[1].bytes, .dv = c.outputs[2].bytes,
                           .dsinks = c.outputs.size() > 3 ? FloatsOf(c.outputs[3]) : nullptr, .add_dsinks = c.has(7)},
                          CudaQueue(c).stream);
}

}  // namespace

const Kernel& AttentionCudaKernel() {
  static const Kernel kernel{.launch = LaunchAttention, .unsupported = Unsupported};
  return kernel;
}

const Kernel& AttentionGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchAttentionGradient,
                             .workspace_bytes =
                                 [](const Node& node) {
                                   return BytesOf(DType::kFloat32, NumElements(ToDims(node.in(4)->shape)));
                                 },
                             .unsupported = Unsupported};
  return kernel;
}

}  // namespace weir
