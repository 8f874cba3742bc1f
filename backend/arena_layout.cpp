#include "backend/arena_layout.h"

#include <algorithm>
#include <numeric>

namespace weir {
namespace {

bool Overlap(const PlannedBuffer& a, const PlannedBuffer& b) {
  return a.first_step <= b.last_step && b.first_step <= a.last_step;
}

// Smallest gap of at least `bytes` between the neighbours (sorted by offset), else above the highest.
int64_t BestFit(const std::vector<const PlannedBuffer*>& neighbours, int64_t floor, int64_t bytes) {
  int64_t best = -1, best_gap = 0, end = floor;
  for (const PlannedBuffer* neighbour : neighbours) {
    const int64_t gap = neighbour->offset - end;
    if (gap >= bytes && (best < 0 || gap < best_gap)) best = end, best_gap = gap;
    end = std::max(end, neighbour->offset + Aligned(neighbour->bytes));
  }
  return best >= 0 ? best : end;
}

}  // namespace

int64_t AssignOffsets(std::vector<PlannedBuffer>& buffers, Memory memory) {
  int64_t floor = 0;
  std::vector<PlannedBuffer*> shared;
  for (PlannedBuffer& buffer : buffers) {
    if (buffer.memory != memory) continue;
    if (buffer.persistent) {
      buffer.offset = floor;
      floor += Aligned(buffer.bytes);
    } else if (buffer.bytes > 0) {
      shared.push_back(&buffer);
    }
  }
  std::stable_sort(shared.begin(), shared.end(), [](const PlannedBuffer* a, const PlannedBuffer* b) {
    if (a->bytes != b->bytes) return a->bytes > b->bytes;
    return a->last_step - a->first_step > b->last_step - b->first_step;
  });
  int64_t arena = floor;
  std::vector<const PlannedBuffer*> placed, neighbours;  // `placed` is kept sorted by offset
  for (PlannedBuffer* buffer : shared) {
    neighbours.clear();
    for (const PlannedBuffer* other : placed) {
      if (Overlap(*buffer, *other)) neighbours.push_back(other);
    }
    buffer->offset = BestFit(neighbours, floor, Aligned(buffer->bytes));
    arena = std::max(arena, buffer->offset + Aligned(buffer->bytes));
    const auto at = std::upper_bound(placed.begin(), placed.end(), buffer,
                                     [](const auto* a, const auto* b) { return a->offset < b->offset; });
    placed.insert(at, buffer);
  }
  return arena;
}

}  // namespace weir
