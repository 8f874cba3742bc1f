#include "kernels/common/copy_kernel.h"

#include <cstring>

#include "backend/cpu/parallel.h"

namespace weir {

void CopyBytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to == from || bytes == 0) return;
  ParallelFor(bytes, 1 << 16, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

std::string RefusePacked(const Node& node) {
  for (const auto* values : {&node.inputs, &node.outputs}) {
    for (const Value* value : *values) {
      if (value != nullptr && BitsOf(value->dtype) == 4)
        return "4-bit values must be dequantised first";
    }
  }
  return "";
}

void LaunchCopy(KernelContext& c) {
  CopyBytes(c.outputs[0].bytes, c.inputs[0].bytes, c.outputs[0].size_bytes());
}

}  // namespace weir
