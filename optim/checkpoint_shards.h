#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// Ranks that hold the same values, and which of them this one is.
struct Holders {
  int64_t count = 1, index = 0;
};

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

inline constexpr int64_t kStagingBytes = int64_t{64} << 20;

// The rows that this rank writes, in name order. Those who hold the same rows divide them; small tensors are one's alone,
// each in turn. Over all ranks every row of every tensor is written once.
std::vector<SavedRows> RowsToSave(const std::vector<const Value*>& parameters, const std::function<Holders(const Value&)>& holders_of);
int64_t SavedBytes(const std::vector<SavedRows>& rows);

// Rows of axis 0 of all of a parameter (1 for a scalar), and elements of one.
int64_t RowsOf(const Value& parameter);
int64_t RowElementsOf(const Value& parameter);

}  // namespace weir
