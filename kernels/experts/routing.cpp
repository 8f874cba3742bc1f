#include "kernels/experts/routing.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"

namespace weir {

ExpertsShape::ExpertsShape(const Attributes& attributes, const Dims& x, const Dims& ids,
                           const Dims& down)
    : n(x[0]),
      k(ids[1]),
      e(down[0]),
      h(x[1]),
      i(down[2]),
      leaves(attributes.Int("leaves", 16)),
      unit_rows(attributes.Int("unit_rows", 4096)) {
  WEIR_CHECK(leaves > 0 && unit_rows > 0, ErrorCode::kInvalidArgument, "Experts: leaves ", leaves,
             " and unit_rows ", unit_rows, " must be positive");
}

ExpertsShape::ExpertsShape(const Node& node)
    : ExpertsShape(node.attributes, ToDims(node.in(0)->shape), ToDims(node.in(1)->shape),
                   ToDims(node.in(4)->shape)) {}

int64_t ExpertsShape::LeavesPerChunk() const {
  return std::clamp<int64_t>(kChunkTokens / std::max<int64_t>(1, LeafTokens()), 1, leaves);
}

int64_t ExpertsShape::ChunkRoutes() const {
  return std::min(n, LeavesPerChunk() * LeafTokens()) * k;
}

void CheckExpertIds(const int64_t* ids, int64_t n, int64_t k, int64_t experts) {
  for (int64_t route = 0; route < n * k; ++route) {
    WEIR_CHECK(ids[route] >= 0 && ids[route] < experts, ErrorCode::kInvalidArgument,
               "Experts: expert id ", ids[route], " at token ", route / k, " slot ", route % k,
               " is outside [0,", experts, ")");
  }
}

ChunkRouting::ChunkRouting(const ExpertsShape& s, WorkspaceLayout& layout)
    : shape_(s),
      first_(layout.Take<int64_t>(s.e + 1)),
      routes_(layout.Take<int64_t>(s.ChunkRoutes())),
      unit_ends_(layout.Take<int64_t>(s.ChunkRoutes())),
      rows_(layout.Take<int64_t>(s.ChunkRoutes())),
      tokens_at_(layout.Take<int64_t>(s.k == 0 ? s.n : s.ChunkRoutes() / s.k)) {}

void ChunkRouting::Build(const int64_t* ids, int64_t first_leaf) {
  const ExpertsShape& s = shape_;
  const int64_t end_leaf = std::min(s.leaves, first_leaf + s.LeavesPerChunk());
  tokens_ = 0;
  for (int64_t leaf = first_leaf; leaf < end_leaf; ++leaf) {
    for (int64_t token = leaf; token < s.n; token += s.leaves) tokens_at_[tokens_++] = token;
  }
  // Counting sort: stable, so (leaf, token, slot) order survives within an expert.
  std::fill_n(first_, s.e + 1, int64_t{0});
  for (int64_t t = 0; t < tokens_; ++t) {
    for (int64_t slot = 0; slot < s.k; ++slot) ++first_[ids[tokens_at_[t] * s.k + slot]];
  }
  int64_t row = 0;
  for (int64_t expert = 0; expert <= s.e; ++expert) row += std::exchange(first_[expert], row);
  for (int64_t t = 0; t < tokens_; ++t) {
    for (int64_t slot = 0; slot < s.k; ++slot) {
      const int64_t route = tokens_at_[t] * s.k + slot, at = first_[ids[route]]++;
      routes_[at] = route;
      rows_[t * s.k + slot] = at;
    }
  }
  for (int64_t expert = s.e; expert > 0; --expert) first_[expert] = first_[expert - 1];
  first_[0] = 0;
  CutUnits();
}

void ChunkRouting::CutUnits() {
  const auto leaf = [&](int64_t row) { return routes_[row] / shape_.k % shape_.leaves; };
  for (int64_t expert = 0; expert < shape_.e; ++expert) {
    for (int64_t row = first_[expert], end = row; row < first_[expert + 1]; row = end) {
      const int64_t limit = std::min(first_[expert + 1], row + shape_.unit_rows);
      while (end < limit && leaf(end) == leaf(row)) ++end;
      std::fill(unit_ends_ + row, unit_ends_ + end, end);
    }
  }
}

int64_t ChunkRouting::ExpertOf(int64_t row) const {
  return std::upper_bound(first_, first_ + shape_.e + 1, row) - first_ - 1;
}

void ChunkRouting::GatherTokens(const RowBlock& block, const float* tokens, int64_t width,
                                float* out) const {
  for (int64_t row = block.begin; row < block.end; ++row, out += width) {
    std::copy_n(tokens + routes_[row] / shape_.k * width, width, out);
  }
}

int64_t ChunkRouting::CutBlocks(int64_t begin, int64_t end, int64_t most, RowBlock* blocks) const {
  int64_t count = 0;
  int64_t expert = ExpertOf(begin);
  for (int64_t row = begin; row < end; ++expert) {
    for (const int64_t last = std::min(end, first_[expert + 1]); row < last;) {
      blocks[count++] = {expert, row, std::min(last, row + most)};
      row = blocks[count - 1].end;
    }
  }
  return count;
}

int64_t ChunkRouting::MaxBlocks(const ExpertsShape& s, int64_t most) {
  return s.ChunkRoutes() / most + std::min(s.e, s.ChunkRoutes());
}

}  // namespace weir
