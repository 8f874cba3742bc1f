#include "kernels/ring_dtp/sizes.h"

#include <algorithm>

#include "kernels/common/token_blocks.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return DivCeil(value, unit) * unit; }

}  // namespace

int64_t HeadSizes::windows() const { return DivCeil(vocabulary, window); }

int64_t HeadSizes::input_gradient_group() const { return std::min(leaf, kSgemmBlockK); }

// Windows are whole leaves too, so that a token's leaf is met at once.
void AlignStrips(HeadSizes& s, int64_t unit) {
  if (s.strip < s.vocabulary) s.strip = RoundUp(s.strip, unit);
  s.strip = std::min(s.strip, s.vocabulary);
  s.window = s.ranks == 1 ? s.vocabulary : std::min(RoundUp(RoundUp(s.strip, unit), s.leaf), s.vocabulary);
}

HeadSizes HeadSizesOf(const Dims& x, const Dims& weight, const Attributes& attributes) {
  HeadSizes s{.tokens = NumElements(Dims(x.begin(), x.end() - 1)),
              .channels = x.back(),
              .vocabulary = attributes.Int("vocabulary", weight[0]),
              .block = 0,
              .strip = attributes.Int("strip", 8192),
              .leaf = attributes.Int("vocab_leaf", kVocabularyLeaf),
              .ranks = attributes.Int("vocab_parallel", 1),
              .window = 0,
              .shard_gradient = attributes.Int("shard_gradient", 0) != 0};
  s.block = std::min(s.tokens, kTokenBlockRows);
  AlignStrips(s, s.input_gradient_group());  // dX adds whole groups only, so that a cut changes no bit
  return s;
}

}  // namespace weir
