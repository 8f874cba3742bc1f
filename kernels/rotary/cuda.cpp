#include "kernels/rotary/cuda.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/device/types.h"

namespace weir {
namespace {

void LaunchTable(KernelContext& c) {
  const std::vector<double> inv_freq = c.attributes().Floats("inv_freq");
  cuda::RotaryFrequencies frequencies{};
  for (size_t i = 0; i < inv_freq.size(); ++i) frequencies.at[i] = static_cast<float>(inv_freq[i]);
  const Dims& dims = c.outputs[0].dims;
  cuda::RotaryTable(frequencies, c.attributes().Float("scale", 1), c.attributes().Int("part", 0) * dims[0], dims[0], dims[1],
                    c.outputs[0].data<float>(), c.outputs.size() > 1 ? c.outputs[1].data<float>() : nullptr,
                    CudaQueue(c).stream);
}

std::string RefuseTable(const Node& node) {
  return node.attributes.Floats("inv_freq").size() > cuda::kMaxRotaryPairs ? "more than 512 frequencies" : "";
}

// The transpose exchanges the layouts of input and output.
void Launch(KernelContext& c, float sign) {
  const Dims& dims = c.inputs[0].dims;
  const bool in = c.attributes().Int("input_interleaved", 0) != 0,
             out = c.attributes().Int("output_interleaved", 0) != 0;
  cuda::Rotate(c.inputs[0].dtype,
               {.tokens = dims[0] * dims[1],
                .length = dims[1],
                .heads = dims[2],
                .width = dims[3],
                .half = c.inputs[1].dims[1],
                .sign = sign,
                .from_interleaved = sign > 0 ? in : out,
                .to_interleaved = sign > 0 ? out : in},
               c.inputs[0].bytes, c.inputs[1].data<float>(), c.inputs[2].data<float>(), c.outputs[0].bytes,
               CudaQueue(c).stream);
}
void LaunchRotary(KernelContext& c) { Launch(c, 1); }
void LaunchRotaryGradient(KernelContext& c) { Launch(c, -1); }

}  // namespace

WEIR_CUDA_KERNEL(RotaryTable, .launch = LaunchTable, .unsupported = RefuseTable)
WEIR_CUDA_KERNEL(Rotary, .launch = LaunchRotary, .unsupported = RefuseAllButActivations)
WEIR_CUDA_KERNEL(RotaryGradient, .launch = LaunchRotaryGradient, .unsupported = RefuseAllButActivations)

}  // namespace weir
