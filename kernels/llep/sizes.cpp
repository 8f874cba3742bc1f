#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/shape.h"
#include "kernels/llep/plan.h"

namespace weir {

void LlepKnobs::Validate() const {
  std::string wrong;
  const auto require = [&](bool good, const char* name, auto value, const char* expected) {
    if (!good) wrong += StrCat("\n  ", name, " is ", value, ", expected ", expected);
  };
  require(ranks >= 1, "expert_parallel", ranks, ">= 1");
  require(experts >= ranks, "experts", experts, "at least one per rank");
  require(top_k >= 1, "top_k", top_k, ">= 1");
  require(max_tokens >= 0, "max_tokens", max_tokens, ">= 0");
  require(leaves >= 1, "leaves", leaves, ">= 1");
  require(unit_rows >= 1, "unit_rows", unit_rows, ">= 1");
  require(chunk_tokens >= 0, "chunk_tokens", chunk_tokens, ">= 0 (0 = no limit)");
  require(max_chunks >= 0, "max_chunks", max_chunks, ">= 0 (0 = no limit)");
  require(lambda >= 1, "lambda", lambda, ">= 1 (inf = never balance)");
  require(alpha >= 1 && std::isfinite(alpha), "alpha", alpha, "a number >= 1");
  require(min_rows >= 1, "min_rows", min_rows, ">= 1");
  require(max_foreign >= 0, "max_foreign", max_foreign, ">= 0");
  WEIR_CHECK(wrong.empty(), ErrorCode::kInvalidArgument, "expert dispatch cannot run so:", wrong);
}

int64_t LlepKnobs::FirstExpert(int64_t rank) const {
  return rank * (experts / ranks) + std::min(rank, experts % ranks);
}

int64_t LlepKnobs::Owner(int64_t expert) const {
  const int64_t each = experts / ranks, larger = experts % ranks * (each + 1);
  return expert < larger ? expert / (each + 1) : experts % ranks + (expert - larger) / each;
}

ChunkSizes ChunkSizesOf(const LlepKnobs& knobs) {
  ChunkSizes s;
  s.leaf_tokens = DivCeil(knobs.max_tokens, knobs.leaves);
  s.leaves = knobs.leaves;
  if (knobs.chunk_tokens > 0) {
    s.leaves = std::clamp<int64_t>(knobs.chunk_tokens / std::max<int64_t>(s.leaf_tokens, 1), 1,
                                   knobs.leaves);
  }
  if (knobs.max_chunks > 0) s.leaves = std::max(s.leaves, DivCeil(knobs.leaves, knobs.max_chunks));
  s.chunks = DivCeil(knobs.leaves, s.leaves);
  s.tokens = s.leaves * s.leaf_tokens;
  return s;
}

std::string ChunkNotice(const LlepKnobs& knobs) {
  const ChunkSizes s = ChunkSizesOf(knobs);
  if (knobs.chunk_tokens == 0 || s.tokens <= knobs.chunk_tokens) return "";
  const bool leaf_binds = s.leaves == 1;
  return StrCat("chunks hold ", s.tokens, " tokens, not the ", knobs.chunk_tokens, " asked for: ",
                leaf_binds ? StrCat("one of ", knobs.leaves, " leaves has ", s.leaf_tokens)
                           : StrCat("at most ", knobs.max_chunks, " chunks are allowed"));
}

int64_t PlainRowBound(const LlepKnobs& knobs) {
  return knobs.ranks * knobs.top_k * ChunkSizesOf(knobs).tokens;
}

namespace {

// ceil(factor * k * c_eff) + E_p, or the plain bound when that is smaller, the factor infinite, or there are no tokens.
int64_t ScaledBound(const LlepKnobs& knobs, double factor) {
  const double rows =
      std::ceil(factor * static_cast<double>(knobs.top_k * ChunkSizesOf(knobs).tokens));
  const int64_t plain = PlainRowBound(knobs);
  const bool scaled = rows < static_cast<double>(plain);  // false for 0 * infinity too
  return scaled ? std::min(plain, static_cast<int64_t>(rows) + knobs.ranks) : plain;
}

}  // namespace

int64_t BalancedRowBound(const LlepKnobs& knobs) { return ScaledBound(knobs, knobs.alpha); }

int64_t RowBound(const LlepKnobs& knobs) {
  const int64_t one_leaf = knobs.ranks * knobs.top_k * ChunkSizesOf(knobs).leaf_tokens;
  return std::max(ScaledBound(knobs, std::max(knobs.alpha, knobs.lambda)), one_leaf);
}

int64_t UnitRowBound(const LlepKnobs& knobs) {
  return std::min(knobs.unit_rows, knobs.ranks * knobs.top_k * ChunkSizesOf(knobs).leaf_tokens);
}

int64_t MaxBorrowed(const LlepKnobs& knobs) {
  if (knobs.ranks == 1 || std::isinf(knobs.lambda)) return 0;
  return std::min(knobs.max_foreign, knobs.experts - knobs.experts / knobs.ranks);
}

}  // namespace weir
