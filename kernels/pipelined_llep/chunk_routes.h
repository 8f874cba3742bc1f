#pragma once
#include <span>
#include <vector>

#include "kernels/common/workspace_layout.h"
#include "kernels/pipelined_llep/chunk_rows.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// The rows of one chunk as indices in host memory (see ChunkRows).
class ChunkRoutes {
 public:
  ChunkRoutes(const DispatchShape& shape, WorkspaceLayout& layout);

  // Throws Internal when `ids` are not what was counted.
  void Build(const ChunkRows& rows, const int64_t* ids);

  SlotRows slots() const { return {tokens_, shape_.k, tokens_at_, home_row_}; }
  const int64_t* away_row() const { return away_row_; }  // by row of the compute order
  const int64_t* unit_end() const { return unit_end_; }  // likewise

 private:
  void PlaceHome(const ChunkRows& rows, const int64_t* ids);
  void PlaceAway(const ChunkRows& rows);

  const DispatchShape& shape_;
  int64_t *tokens_at_, *home_row_, *away_row_, *unit_end_;
  int64_t tokens_ = 0;
};

}  // namespace weir
