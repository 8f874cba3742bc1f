#pragma once
#include <span>
#include <vector>

#include "kernels/common/workspace_layout.h"
#include "kernels/experts/routing.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// Where one chunk's routes lie, on the rank of their tokens ("home") and on the rank that computes
// them ("away"). Home rows are sorted by (rank that computes, expert, leaf, unit, token, slot),
// away rows by (rank of the token, expert, leaf, unit, token, slot), so ranks exchange runs of rows
// and no index. Rows are computed in canonical order: expert, leaf, unit, source rank, token, slot.
class ChunkRoutes {
 public:
  ChunkRoutes(const DispatchShape& shape, WorkspaceLayout& layout);

  // counts[source rank][leaf][expert]. Throws Internal when `ids` are not what was counted.
  void Build(const LlepChunk& chunk, std::span<const int64_t> counts, const int64_t* ids,
             int64_t rank);

  struct Unit {
    const LlepUnit* unit;
    int64_t first;  // its first row of the compute order
    int64_t end() const { return first + unit->rows(); }
  };
  const std::vector<Unit>& units() const { return units_; }  // that this rank computes
  const LlepChunk& chunk() const { return *chunk_; }
  // Rows of `units` cut at expert edges and every `most` rows.
  static std::vector<RowBlock> CutBlocks(std::span<const Unit> units, int64_t most);

  SlotRows slots() const { return {tokens_, shape_.k, tokens_at_, home_row_}; }
  const int64_t* away_row() const { return away_row_; }  // by row of the compute order
  const int64_t* unit_end() const { return unit_end_; }  // likewise
  // Rows to and from each rank.
  std::span<const int64_t> sent() const { return sent_; }
  std::span<const int64_t> received() const { return received_; }
  int64_t home_rows() const { return home_rows_; }
  int64_t away_rows() const { return away_rows_; }

 private:
  void PlaceHome(std::span<const int64_t> counts, const int64_t* ids, int64_t rank);
  void PlaceAway(std::span<const int64_t> counts, int64_t rank);

  const DispatchShape& shape_;
  int64_t *tokens_at_, *home_row_, *away_row_, *unit_end_;
  const LlepChunk* chunk_ = nullptr;
  std::vector<Unit> units_;
  std::vector<int64_t> sent_, received_;
  int64_t tokens_ = 0, home_rows_ = 0, away_rows_ = 0;
};

}  // namespace weir
