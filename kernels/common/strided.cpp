#include "kernels/common/strided.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/parallel.h"

namespace weir {
namespace {

constexpr int64_t kChunk = 1 << 13;  // elements of one unit of work along the last axis
constexpr int64_t kTile = 32;        // side of a transposed tile

struct Axis {
  int64_t size, to, from;
};

// Axes of size 1 dropped; neighbours that step alike on both sides joined. Never empty.
std::vector<Axis> Coalesce(const StridedBlock& block) {
  std::vector<Axis> axes;
  for (size_t i = 0; i < block.dims.size(); ++i) {
    const Axis axis{block.dims[i], block.to_strides[i], block.from_strides[i]};
    if (axis.size == 1) continue;
    if (!axes.empty() && axes.back().to == axis.to * axis.size &&
        axes.back().from == axis.from * axis.size) {
      axes.back() = {axes.back().size * axis.size, axis.to, axis.from};
    } else {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) axes.push_back({1, 1, 1});
  return axes;
}

struct Offsets {
  int64_t to = 0, from = 0;
};

// The offsets of tuple after tuple of axes [0, count), from number `index` on.
class Walker {
 public:
  Walker(const std::vector<Axis>& axes, size_t count, int64_t index) : axes_(axes), step_(count) {
    for (size_t i = count; i-- > 0;) {
      step_[i] = index % axes[i].size;
      index /= axes[i].size;
      at_.to += step_[i] * axes[i].to;
      at_.from += step_[i] * axes[i].from;
    }
  }
  const Offsets& at() const { return at_; }
  void Next() {
    for (size_t i = step_.size(); i-- > 0;) {
      at_.to += axes_[i].to;
      at_.from += axes_[i].from;
      if (++step_[i] < axes_[i].size) return;
      at_.to -= axes_[i].size * axes_[i].to;
      at_.from -= axes_[i].size * axes_[i].from;
      step_[i] = 0;
    }
  }

 private:
  const std::vector<Axis>& axes_;
  Dims step_;
  Offsets at_;
};

int64_t Count(const std::vector<Axis>& axes, size_t count) {
  int64_t product = 1;
  for (size_t i = 0; i < count; ++i) product *= axes[i].size;
  return product;
}

template <class E>
void CopyRun(E* to, const E* from, int64_t count, const Axis& step) {
  if (step.to == 1 && step.from == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(E));
  } else if (step.to == 1 && step.from == 0) {
    std::fill_n(to, count, *from);
  } else {
    for (int64_t k = 0; k < count; ++k) to[k * step.to] = from[k * step.from];
  }
}

template <class E>
void CopyRows(const std::vector<Axis>& axes, E* to, const E* from) {
  const Axis& last = axes.back();
  const size_t outer = axes.size() - 1;
  const int64_t chunks = DivCeil(last.size, kChunk), chunk = DivCeil(last.size, chunks);
  ParallelFor(Count(axes, outer) * chunks, std::max<int64_t>(1, kChunk / chunk),
              [&](int64_t begin, int64_t end) {
                Walker row(axes, outer, begin / chunks);
                for (int64_t unit = begin; unit < end; ++unit) {
                  const int64_t first = unit % chunks * chunk;
                  CopyRun(to + row.at().to + first * last.to,
                          from + row.at().from + first * last.from,
                          std::min(chunk, last.size - first), last);
                  if ((unit + 1) % chunks == 0) row.Next();
                }
              });
}

// The last two axes step by 1 on different sides: square tiles keep both within cache lines.
template <class E>
void CopyTiles(const std::vector<Axis>& axes, E* to, const E* from) {
  const Axis rows = axes[axes.size() - 2], columns = axes.back();
  const size_t outer = axes.size() - 2;
  const int64_t strips = DivCeil(rows.size, kTile);
  ParallelFor(Count(axes, outer) * strips, std::max<int64_t>(1, kChunk / (kTile * columns.size)),
              [&](int64_t begin, int64_t end) {
                for (int64_t unit = begin; unit < end; ++unit) {
                  const Offsets at = Walker(axes, outer, unit / strips).at();
                  const int64_t top = unit % strips * kTile,
                                bottom = std::min(rows.size, top + kTile);
                  for (int64_t left = 0; left < columns.size; left += kTile) {
                    const int64_t right = std::min(columns.size, left + kTile);
                    for (int64_t r = top; r < bottom; ++r) {
                      E* y = to + at.to + r * rows.to;
                      const E* x = from + at.from + r * rows.from;
                      for (int64_t c = left; c < right; ++c)
                        y[c * columns.to] = x[c * columns.from];
                    }
                  }
                }
              });
}

template <class E>
void Copy(std::vector<Axis> axes, std::byte* to, const std::byte* from) {
  E* y = reinterpret_cast<E*>(to);
  const E* x = reinterpret_cast<const E*>(from);
  if (axes.back().from != 1 && axes.back().from != 0) {
    const auto unit =
        std::find_if(axes.begin(), axes.end(), [](const Axis& a) { return a.from == 1; });
    if (unit != axes.end()) {
      std::rotate(unit, unit + 1, axes.end() - 1);  // the source's dense axis goes next to the last
      return CopyTiles(axes, y, x);
    }
  }
  CopyRows(axes, y, x);
}

template <class E>
void Fill(std::byte* to, const std::byte* element, int64_t count) {
  E value;
  std::memcpy(&value, element, sizeof(E));
  E* y = reinterpret_cast<E*>(to);
  ParallelFor(count, kChunk,
              [&](int64_t begin, int64_t end) { std::fill(y + begin, y + end, value); });
}

}  // namespace

void CopyStrided(const StridedBlock& block, std::byte* to, const std::byte* from,
                 int64_t element_bytes) {
  if (NumElements(block.dims) == 0) return;
  auto axes = Coalesce(block);
  switch (element_bytes) {
    case 1:
      return Copy<uint8_t>(std::move(axes), to, from);
    case 2:
      return Copy<uint16_t>(std::move(axes), to, from);
    case 4:
      return Copy<uint32_t>(std::move(axes), to, from);
    default:
      return Copy<uint64_t>(std::move(axes), to, from);
  }
}

void SumStrided(const StridedBlock& block, float* to, const float* from) {
  for (size_t i = 0; i < block.dims.size(); ++i) {
    if (block.dims[i] == 0 && block.to_strides[i] != 0) return;
  }
  std::vector<Axis> kept, summed;
  for (const Axis& axis : Coalesce(block)) (axis.to == 0 ? summed : kept).push_back(axis);
  const auto empty = [](const Axis& axis) { return axis.size == 0; };
  if (std::any_of(summed.begin(), summed.end(), empty)) summed = {{0, 0, 0}};  // nothing to add
  if (summed.empty()) summed.push_back({1, 0, 0});
  const Axis inner = summed.back();
  const int64_t terms = Count(summed, summed.size() - 1);
  // Runs of the last kept axis are summed side by side when `from` is dense there.
  const bool dense = !kept.empty() && kept.back().from == 1;
  const int64_t width = dense ? kept.back().size : 1;
  const size_t outer = dense ? kept.size() - 1 : kept.size();
  constexpr int64_t kWidth = 256;
  const int64_t pieces = DivCeil(width, kWidth);
  const int64_t work = std::max<int64_t>(1, std::min(width, kWidth) * terms * inner.size);
  ParallelFor(Count(kept, outer) * pieces, std::max<int64_t>(1, kChunk / work),
              [&](int64_t begin, int64_t end) {
                double sums[kWidth];
                Walker row(kept, outer, begin / pieces);
                for (int64_t unit = begin; unit < end; ++unit) {
                  const int64_t first = unit % pieces * kWidth,
                                count = std::min(kWidth, width - first);
                  std::fill_n(sums, count, 0.0);
                  Walker term(summed, summed.size() - 1, 0);
                  for (int64_t t = 0; t < terms; ++t, term.Next()) {
                    const float* x = from + row.at().from + first + term.at().from;
                    for (int64_t k = 0; k < inner.size; ++k, x += inner.from) {
                      for (int64_t j = 0; j < count; ++j) sums[j] += x[j];
                    }
                  }
                  for (int64_t j = 0; j < count; ++j)
                    to[row.at().to + first + j] = static_cast<float>(sums[j]);
                  if ((unit + 1) % pieces == 0) row.Next();
                }
              });
}

void FillElements(std::byte* to, const std::byte* element, int64_t count, int64_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return Fill<uint8_t>(to, element, count);
    case 2:
      return Fill<uint16_t>(to, element, count);
    case 4:
      return Fill<uint32_t>(to, element, count);
    default:
      return Fill<uint64_t>(to, element, count);
  }
}

}  // namespace weir
