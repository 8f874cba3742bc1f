#include "kernels/ring_dtp/sizes.h"

#include <algorithm>

#include "graph/vocabulary_share.h"
#include "kernels/common/token_blocks.h"
#include "kernels/cross_entropy/log_sum.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return DivCeil(value, unit) * unit; }

// By bytes: x twice and dx once for each token, against the weight twice and, where it is summed here, its gradient
// once for each column. Without that gradient half as many tokens are as dear, or fewer.
bool TokensTravel(const HeadSizes& s, const std::string& move) {
  return move == "activations" || (move == "auto" && s.tokens * (s.shard_gradient ? 1 : 2) < s.vocabulary / s.ranks);
}

}  // namespace

int64_t HeadSizes::windows() const { return DivCeil(vocabulary, window); }

int64_t HeadSizes::input_gradient_group() const { return std::min(leaf, kSgemmBlockK); }

Share HeadSizes::Held(int64_t member) const { return VocabularyShare(vocabulary, share, ranks, member); }

// Windows are whole leaves too, so that a token's leaf is met at once.
void AlignStrips(HeadSizes& s, int64_t unit) {
  const int64_t columns = s.relay ? s.Held(0).size() : s.vocabulary;
  if (s.strip < columns) s.strip = RoundUp(s.strip, unit);
  s.strip = std::min(s.strip, columns);
  s.window = s.ranks == 1 ? s.vocabulary : std::min(RoundUp(RoundUp(s.strip, unit), s.leaf), s.vocabulary);
}

HeadSizes HeadSizesOf(const Dims& x, const Dims& weight, const Attributes& attributes) {
  HeadSizes s{.tokens = NumElements(Dims(x.begin(), x.end() - 1)),
              .channels = x.back(),
              .vocabulary = attributes.Int("vocabulary", weight[0]),
              .block = 0,
              .strip = attributes.Int("strip", 8192),
              .leaf = attributes.Int("vocab_leaf", kVocabularyLeaf),
              .share = 0,
              .ranks = attributes.Int("vocab_parallel", 1),
              .window = 0,
              .shard_gradient = attributes.Int("shard_gradient", 0) != 0,
              .relay = false};
  s.share = attributes.Int("share_columns", s.leaf);
  s.relay = s.ranks > 1 && TokensTravel(s, attributes.String("move", "weights"));
  // Other ranks' blocks come through, whatever this one has.
  s.block = s.relay ? kTokenBlockRows : std::min(s.tokens, kTokenBlockRows);
  AlignStrips(s, s.input_gradient_group());  // dX adds whole groups only, so that a cut changes no bit
  return s;
}

}  // namespace weir
