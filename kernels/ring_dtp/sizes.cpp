#include "kernels/ring_dtp/sizes.h"

#include <algorithm>

#include "kernels/common/token_blocks.h"
#include "kernels/gemm/sgemm.h"

namespace weir {

HeadSizes HeadSizesOf(const Dims& x, const Dims& weight, const Attributes& attributes) {
  HeadSizes s{.tokens = NumElements(Dims(x.begin(), x.end() - 1)),
              .channels = x.back(),
              .vocabulary = weight[0],
              .block = 0,
              .strip = attributes.Int("strip", 8192)};
  s.block = std::min(s.tokens, kTokenBlockRows);
  // dX adds whole k blocks only, so that a cut changes no bit.
  if (s.strip < s.vocabulary) s.strip = DivCeil(s.strip, kSgemmBlockK) * kSgemmBlockK;
  s.strip = std::min(s.strip, s.vocabulary);
  return s;
}

}  // namespace weir
