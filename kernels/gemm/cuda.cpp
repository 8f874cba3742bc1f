#include "kernels/gemm/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/gemm/reference.h"

namespace weir {
namespace {

int64_t GemmWorkspace(const Node& node) { return cuda::GemmWorkspaceBytes(node.in(0)->dtype); }

float FloatAttribute(const KernelContext& c, const char* name) {
  return static_cast<float>(c.attributes().Float(name, 1));
}

void LaunchGemm(KernelContext& c) {
  const Tensor &a = c.inputs[0], &b = c.inputs[1], &y = c.outputs[0];
  const bool ta = c.attributes().Int("transA", 0) != 0, tb = c.attributes().Int("transB", 0) != 0;
  const int64_t m = y.dims[0], n = y.dims[1];
  cuda::Gemm(CudaQueue(c),
             {.m = m,
              .n = n,
              .k = a.dims[ta ? 0 : 1],
              .a = {a.bytes, a.dtype, a.dims[1], ta},
              .b = {b.bytes, b.dtype, b.dims[1], tb},
              .c = y.bytes,
              .c_dtype = y.dtype,
              .c_stride = n},
             c.workspace.data());
  cuda::GemmScale scale{
      m, n, FloatAttribute(c, "alpha"), FloatAttribute(c, "beta"), nullptr, y.dtype, 0, 0};
  if (scale.alpha == 1 && !c.has(2)) return;
  if (c.has(2)) {
    scale.c = c.inputs[2].bytes;
    scale.c_dtype = c.inputs[2].dtype;
    std::tie(scale.c_row, scale.c_column) = GemmBiasStrides(c.inputs[2].dims);
  }
  cuda::ScaleGemm(y.bytes, y.dtype, scale, CudaQueue(c).stream);
}

void LaunchGemmBiasGradient(KernelContext& c) {
  const Tensor &dy = c.inputs[1], &dc = c.outputs[0];
  const auto [row, column] = GemmBiasStrides(c.inputs[0].dims);
  cuda::GemmBiasGradient(
      {dy.dims[0], dy.dims[1], 1, FloatAttribute(c, "beta"), nullptr, dc.dtype, row, column},
      dy.bytes, dy.dtype, dc.bytes, dc.dtype, dc.elements(), CudaQueue(c).stream);
}

}  // namespace

const Kernel& GemmCudaKernel() {
  static const Kernel kernel{.launch = LaunchGemm, .workspace_bytes = GemmWorkspace};
  return kernel;
}

const Kernel& GemmBiasGradientCudaKernel() {
  static const Kernel kernel{.launch = LaunchGemmBiasGradient};
  return kernel;
}

}  // namespace weir
