#pragma once
#include <cstdint>
#include <vector>

#include "graph/op_schema.h"

namespace weir {

// Integer inputs of conformance cases: rank 1, scalar, any dims.
inline CaseInput IntsInput(std::vector<int64_t> values) {
  const Dims dims = {static_cast<int64_t>(values.size())};
  return {.kind = CaseInput::Kind::kInts, .dims = dims, .ints = std::move(values)};
}
inline CaseInput IntInput(int64_t value) {
  return {.kind = CaseInput::Kind::kInts, .dims = {}, .ints = {value}};
}
inline CaseInput IntsInput(Dims dims, std::vector<int64_t> values) {
  return {.kind = CaseInput::Kind::kInts, .dims = std::move(dims), .ints = std::move(values)};
}

}  // namespace weir
