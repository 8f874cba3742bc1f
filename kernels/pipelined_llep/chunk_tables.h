#pragma once
#include <span>
#include <vector>

#include "kernels/experts/unit_table.h"
#include "kernels/pipelined_llep/chunk_rows.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// Row from + i is row to + i of another order, i < rows, and belongs to `expert`.
struct RowRun {
  int64_t from, to, rows, expert;
};

// What a device needs to know of all chunks of a launch, as one array of integers that is uploaded
// once: a few numbers per unit, none per row.
class ChunkTables {
 public:
  struct Runs {
    int64_t at = 0, count = 0;  // RowRuns from words()[at] on
  };
  struct Chunk {
    int64_t first, tokens;  // positions of this rank's tokens in leaf order
    Runs home;              // sorted row -> home row; none when they are the same
    Runs away;              // row of the compute order -> away row
    UnitTable table;
    std::vector<RowBlock>
        units;  // rows of the compute order; experts counted from this rank's first
  };

  ChunkTables(const DispatchShape& shape, std::span<const ChunkRows> chunks, int64_t rank);

  const std::vector<int64_t>& words() const { return words_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  static int64_t MaxWords(const DispatchShape& shape);  // whatever the routing

 private:
  Runs AppendHome(const ChunkRows& rows);
  Runs AppendAway(const ChunkRows& rows);
  void Append(const RowRun& run);

  std::vector<int64_t> words_;
  std::vector<Chunk> chunks_;
};

}  // namespace weir
