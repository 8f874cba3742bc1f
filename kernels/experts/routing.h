#pragma once
#include "graph/attributes.h"
#include "graph/graph.h"
#include "kernels/common/workspace_layout.h"

namespace weir {

// Tokens whose routed rows are at home at once (a whole leaf when that is more).
inline constexpr int64_t kChunkTokens = 2048;

struct ExpertsShape {
  int64_t n, k, e, h, i, leaves, unit_rows;

  ExpertsShape(const Attributes& attributes, const Dims& x, const Dims& ids, const Dims& down);
  explicit ExpertsShape(const Node& node);

  int64_t LeafTokens() const { return DivCeil(n, leaves); }  // of the largest leaf
  int64_t LeavesPerChunk() const;
  int64_t ChunkRoutes() const;  // of the largest chunk
};

// Throws InvalidArgument naming token, slot and value of an id outside [0,E). // C6
void CheckExpertIds(const int64_t* ids, int64_t n, int64_t k, int64_t experts);

// Consecutive rows of one expert.
struct RowBlock {
  int64_t expert, begin, end;
  int64_t size() const { return end - begin; }
};

// Where the routed rows of some tokens lie: token index t is token[t], its slots are the rows
// row[t * k .. t * k + k).
struct SlotRows {
  int64_t tokens, k;
  const int64_t *token, *row;
};

// The routes of a run of consecutive leaves, sorted by (expert, leaf, token, slot). Rows of an
// expert are contiguous: [first[e], first[e + 1]).
class ChunkRouting {
 public:
  ChunkRouting(const ExpertsShape& s, WorkspaceLayout& layout);

  void Build(const int64_t* ids, int64_t first_leaf);

  SlotRows slots() const { return {tokens_, shape_.k, tokens_at_, rows_}; }
  int64_t rows() const { return first_[shape_.e]; }
  int64_t FirstRow(int64_t expert) const { return first_[expert]; }
  int64_t ExpertOf(int64_t row) const;
  const int64_t* routes() const { return routes_; }  // of each row: token * k + slot
  // First row after the unit that holds a row: a leaf edge, unit_rows or the expert's end.
  const int64_t* unit_ends() const { return unit_ends_; }
  // out[r] = the token's row of `tokens` [N, width] for every row r of the block.
  void GatherTokens(const RowBlock& block, const float* tokens, int64_t width, float* out) const;
  // Cuts rows [begin, end) at expert edges and every `most` rows of an expert; returns how many
  // blocks.
  int64_t CutBlocks(int64_t begin, int64_t end, int64_t most, RowBlock* blocks) const;
  // Room that CutBlocks needs for any rows.
  static int64_t MaxBlocks(const ExpertsShape& s, int64_t most);

 private:
  void CutUnits();

  const ExpertsShape& shape_;
  int64_t *first_, *routes_, *unit_ends_, *rows_, *tokens_at_;
  int64_t tokens_ = 0;
};

}  // namespace weir
