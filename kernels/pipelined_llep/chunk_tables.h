#pragma once
#include <span>
#include <vector>

#include "kernels/experts/unit_table.h"
#include "kernels/pipelined_llep/chunk_rows.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {

// On a device a chunk's rows lie in one array: first the rows of this rank's tokens that leave, by
// (rank that computes, expert, leaf, unit, token, slot), then, from shape.home_rows() on, the rows
// that this rank computes. A token's rows that its own rank computes are put there at once; the
// others travel.
enum class RowOrder : uint8_t {
  kCanonical,  // of computed rows: sums over units want it; one message per unit and source
  kBySource,   // expert, source, leaf, unit, token, slot: one message per expert and source
};

// Row from + i of one order is row to + i of another, i < rows, and belongs to `expert`.
struct RowRun {
  int64_t from, to, rows, expert;
};

// Rows [row, row + rows) of the array, to or from a peer.
struct RowMessage {
  int64_t peer, row, rows;
};
// What travels at once: messages of a pair of ranks are matched in order.
struct RowExchange {
  std::vector<RowMessage> leaving, coming;
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
    Runs place;             // row sorted by (expert, leaf, token, slot) -> row of the array
    Runs experts;           // by computed row
    UnitTable table;
    // In canonical order; experts counted from this rank's first. In the other order an expert's
    // units together are its rows.
    std::vector<RowBlock> units;
    std::vector<RowExchange> exchanges;
  };

  ChunkTables(const DispatchShape& shape, std::span<const ChunkRows> chunks, int64_t rank,
              RowOrder order);

  const std::vector<int64_t>& words() const { return words_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  static int64_t MaxWords(const DispatchShape& shape);  // whatever the routing

 private:
  Runs AppendRuns(std::span<const RowRun> runs);

  std::vector<int64_t> words_;
  std::vector<Chunk> chunks_;
};

}  // namespace weir
