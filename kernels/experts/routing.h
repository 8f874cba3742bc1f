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
void CheckExpertIds(const ExpertsShape& s, const int64_t* ids);

// Consecutive rows of one expert.
struct RowBlock {
  int64_t expert, begin, end;
  int64_t size() const { return end - begin; }
};

// The routes of a run of consecutive leaves, sorted by (expert, leaf, token, slot). Rows of an
// expert are contiguous: [first[e], first[e + 1]).
class ChunkRouting {
 public:
  ChunkRouting(const ExpertsShape& s, WorkspaceLayout& layout);

  void Build(const int64_t* ids, int64_t first_leaf);

  int64_t tokens() const { return tokens_; }
  int64_t rows() const { return first_[shape_.e]; }
  int64_t FirstRow(int64_t expert) const { return first_[expert]; }
  int64_t ExpertOf(int64_t row) const;
  int64_t Route(int64_t row) const { return routes_[row]; }           // token * k + slot
  int64_t TokenOf(int64_t index) const { return tokens_at_[index]; }  // index in [0, tokens())
  int64_t RowOf(int64_t index, int64_t slot) const { return rows_[index * shape_.k + slot]; }
  // First row after the unit that starts at `row`: a leaf edge, unit_rows or the expert's end.
  int64_t UnitEnd(int64_t row, int64_t expert_end) const;
  // Cuts rows [begin, end) at expert edges and every `most` rows of an expert; returns how many
  // blocks.
  int64_t CutBlocks(int64_t begin, int64_t end, int64_t most, RowBlock* blocks) const;
  // Room that CutBlocks needs for any rows.
  static int64_t MaxBlocks(const ExpertsShape& s, int64_t most);

 private:
  const ExpertsShape& shape_;
  int64_t *first_, *routes_, *rows_, *tokens_at_;
  int64_t tokens_ = 0;
};

}  // namespace weir
