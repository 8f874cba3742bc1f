#include "kernels/movement/cuda_fill.h"

#include "backend/cuda/cuda_stream.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/device/block.h"
#include "kernels/device/known_ints.h"
#include "kernels/device/types.h"
#include "kernels/movement/blocks.h"

namespace weir {
namespace {

// The fill value everywhere, then the elements of x that stay.
void LaunchPad(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  const int64_t size = BytesOf(y.dtype, 1);
  cuda::FillFrom(y.bytes, c.has(2) ? c.inputs[2].bytes : nullptr, y.elements(), static_cast<int>(size),
                 CudaQueue(c).stream);
  const PadBlock pad = PadBlockOf(x.dims, y.dims, KnownInts(c.node, 1),
                                  c.has(3) ? std::optional(KnownInts(c.node, 3)) : std::nullopt);
  CopyBlockOnDevice(pad.block, y.bytes + pad.to_offset * size, x.bytes + pad.from_offset * size, size,
                    CudaQueue(c).stream);
}

std::string RefusePad(const Node& node) {
  for (const size_t i : {size_t{1}, size_t{3}}) {
    if (node.in(i) != nullptr && !HasKnownInts(node, i))
      return "input " + std::to_string(i) + " must be known when planned";
  }
  return RefusePacked(node);
}

void LaunchTrilu(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  const size_t rank = y.dims.size();
  cuda::Trilu({.count = y.elements(),
               .rows = y.dims[rank - 2],
               .columns = y.dims[rank - 1],
               .upper = c.attributes().Int("upper", 1) != 0},
              static_cast<int>(BytesOf(y.dtype, 1)), c.inputs[0].bytes,
              c.has(1) ? c.inputs[1].data<int64_t>() : nullptr, y.bytes, CudaQueue(c).stream);
}

}  // namespace

WEIR_CUDA_KERNEL(Pad, .launch = LaunchPad, .unsupported = RefusePad)
WEIR_CUDA_KERNEL(Trilu, .launch = LaunchTrilu, .unsupported = RefusePacked)

}  // namespace weir
