#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "backend/plan.h"
#include "graph/graph.h"
#include "graph/layout.h"

namespace weir {

// Host memory that a run plans for its checkpoints (optim/checkpoint_writer.h): a few chunks on the way to the disk, or
// all that a rank writes, so that steps go on meanwhile.
enum class Staging : uint8_t { kNone, kChunks, kSnapshot };

// What one rank writes of one tensor of a checkpoint: rows of axis 0, `first` counted in the whole.
struct SavedRows {
  const Value* parameter = nullptr;
  char kind = 'w';          // 'm' and 'v' moments, 'w' float32 master
  int64_t first = 0, rows = 0;
  int64_t row_elements = 1;
  int64_t held_first = 0;   // the first element within what this rank holds

  std::string name() const { return std::string(1, kind) + "/" + parameter->name; }
  int64_t elements() const { return rows * row_elements; }
};

// The rows that this rank writes, in name order. Those who hold the same rows divide them; small tensors are one's alone,
// each in turn. Over all ranks every row of every tensor is written once.
std::vector<SavedRows> RowsToSave(const std::vector<const Value*>& parameters, const Layout& layout, int64_t rank);

// Bytes that `staging` takes on a rank, and their place in a plan of `graph`: the value that is there (kNone: nullptr).
int64_t StagingBytes(Staging staging, const Graph& graph, const Layout& layout, int64_t rank);
const Value* ReserveStaging(Graph& graph, Plan& plan, int64_t bytes);

// The group whose shards make up the whole of a sharded parameter.
const char* ShardGroupOf(const Value& parameter);

// Rows of axis 0 of all of a parameter (1 for a scalar), and elements of one.
int64_t RowsOf(const Value& parameter);
int64_t RowElementsOf(const Value& parameter);

}  // namespace weir
