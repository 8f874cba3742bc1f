#include "kernels/pipelined_llep/row_copies.h"

#include <algorithm>

#include "backend/cpu/parallel.h"

namespace weir {
namespace {

// body(token, slot, row) for every slot of every token, tokens in parallel.
template <class Body>
void ForEachSlot(const SlotRows& at, const Body& body) {
  ParallelFor(at.tokens, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t slot = 0; slot < at.k; ++slot) body(at.token[t], slot, at.row[t * at.k + slot]);
    }
  });
}

}  // namespace

void PackTokens(const SlotRows& at, const float* tokens, const Lane& lane) {
  const int64_t width = lane.row_bytes / kFloatBytes;
  ForEachSlot(at, [&](int64_t token, int64_t, int64_t row) {
    std::copy_n(tokens + token * width, width, Home(lane) + row * width);
  });
}

void PackSlots(const SlotRows& at, const float* values, const Lane& lane) {
  ForEachSlot(at, [&](int64_t token, int64_t slot, int64_t row) {
    Home(lane)[row] = values[token * at.k + slot];
  });
}

void UnpackSlots(const SlotRows& at, const Lane& lane, float* values) {
  ForEachSlot(at, [&](int64_t token, int64_t slot, int64_t row) {
    values[token * at.k + slot] = Home(lane)[row];
  });
}

void GatherRows(const float* from, int64_t width, const int64_t* at, int64_t rows, float* out) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + at[r] * width, width, out + r * width);
}

void ScatterRows(const float* from, int64_t width, const int64_t* at, int64_t rows, float* to) {
  for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * width, width, to + at[r] * width);
}

}  // namespace weir
