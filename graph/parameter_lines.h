#pragma once
#include <functional>
#include <span>

#include "graph/graph.h"

namespace weir {

// Elements of one piece that follow each other on the last canonical axis; in its tensor, counted in row-major order, they are
// `stride` apart.
struct PieceLine {
  int64_t source, stride, target, count;
};

// All of a piece's elements by lines, in canonical order.
class PieceLines {
 public:
  PieceLines(const ParameterPiece& piece, const Dims& canonical);
  // Those of canonical elements first..last, the outer ones cut to it.
  void ForEach(int64_t first, int64_t last, const std::function<void(const PieceLine&)>& body) const;
  void ForEach(const std::function<void(const PieceLine&)>& body) const;

 private:
  struct Axis {
    int64_t size, source, target;  // strides
    bool deinterleaved;
    int64_t From(int64_t i) const { return !deinterleaved ? i : i < size / 2 ? 2 * i : 2 * (i - size / 2) + 1; }
  };
  PieceLine At(int64_t line) const;

  std::vector<Axis> outer_;
  Axis inner_ = {1, 1, 1, false};
  int64_t lines_ = 1, base_ = 0;
};

// Elements first.. of what LoadParameter gives, read without the rest. Threads may share a parameter's elements.
void LoadParameterPart(const Graph& graph, const Value& parameter, int64_t first, std::span<float> out);

}  // namespace weir
