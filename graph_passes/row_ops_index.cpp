// Ops that read or write whole rows at concrete indices.
#include <algorithm>

#include "graph_passes/row_ops_cells.h"
#include "graph_passes/row_trace.h"

namespace weir {

using Rows = std::optional<RowTensor>;

// One number per expert (a scale of its weight) belongs to the router and stays a node.
static bool IsScalePerExpert(const RowTensor& source) {
  return source.whole != nullptr && source.dims.size() == 1;
}

static bool AreIndices(const RowTensor& x) { return x.numbers && !x.numbers->is_float(); }

Rows RowOps::Gather(const RowTensor& source, int64_t axis, const RowTensor& indices) {
  if (IsScalePerExpert(source)) return Fail("gathers one number per expert");
  const Rows x = Enumerated(source, source.dims.size() - (source.dims.empty() ? 0 : 1));
  if (!x) return std::nullopt;
  if (!AreIndices(indices)) return Fail("gathers by unknown indices");
  const auto at = static_cast<size_t>(Axis(axis, x->dims.size()));
  if (std::find(x->opaque.begin(), x->opaque.end(), static_cast<int>(at)) != x->opaque.end()) {
    return Fail("gathers inside a row");
  }
  const Dims& index_dims = indices.dims;
  RowTensor out;
  out.dims.assign(x->dims.begin(), x->dims.begin() + static_cast<int64_t>(at));
  out.dims.insert(out.dims.end(), index_dims.begin(), index_dims.end());
  out.dims.insert(out.dims.end(), x->dims.begin() + static_cast<int64_t>(at) + 1, x->dims.end());
  for (int opaque : x->opaque) {
    const bool after = static_cast<size_t>(opaque) > at;
    out.opaque.push_back(opaque + (after ? static_cast<int>(index_dims.size()) - 1 : 0));
  }
  const Dims strides = CellStrides(*x);
  bool inside = true;
  Remap(out, [&](const Dims& index) {
    int64_t flat = 0, cell = 0;
    for (size_t a = 0; a < index_dims.size(); ++a) flat = flat * index_dims[a] + index[at + a];
    int64_t row = indices.numbers->i[static_cast<size_t>(flat)];
    if (row < 0) row += x->dims[at];
    inside = inside && row >= 0 && row < x->dims[at];
    if (!inside) return kNoExpr;
    for (size_t a = 0; a < x->dims.size(); ++a) {
      const int64_t i = a < at ? index[a] : a == at ? row : index[a + index_dims.size() - 1];
      cell += i * strides[a];
    }
    return x->cells[static_cast<size_t>(cell)];
  });
  return inside ? Rows(out) : Fail("gathers outside its input");
}

Rows RowOps::GatherND(const RowTensor& source, const RowTensor& indices) {
  if (IsScalePerExpert(source)) return Fail("gathers one number per expert");
  if (!AreIndices(indices) || node_.attributes.Int("batch_dims", 0) != 0)
    return Fail("gathers by unknown indices");
  if (indices.dims.empty()) return Fail("has scalar indices");
  const auto depth = static_cast<size_t>(indices.dims.back());
  if (depth > source.dims.size()) return Fail("gathers more axes than there are");
  const Rows x = Enumerated(source, source.dims.size() - depth);
  if (!x) return std::nullopt;
  for (int axis : x->opaque) {
    if (static_cast<size_t>(axis) < depth) return Fail("gathers inside a row");
  }
  RowTensor out;
  const size_t lead = indices.dims.size() - 1;
  out.dims.assign(indices.dims.begin(), indices.dims.end() - 1);
  out.dims.insert(out.dims.end(), x->dims.begin() + static_cast<int64_t>(depth), x->dims.end());
  for (int axis : x->opaque)
    out.opaque.push_back(axis - static_cast<int>(depth) + static_cast<int>(lead));
  const Dims strides = CellStrides(*x);
  bool inside = true;
  Remap(out, [&](const Dims& index) {
    int64_t row = 0, cell = 0;
    for (size_t a = 0; a < lead; ++a) row = row * indices.dims[a] + index[a];
    for (size_t d = 0; d < depth; ++d) {
      int64_t i = indices.numbers->i[static_cast<size_t>(row) * depth + d];
      if (i < 0) i += x->dims[d];
      inside = inside && i >= 0 && i < x->dims[d];
      cell += i * strides[d];
    }
    for (size_t a = depth; a < x->dims.size(); ++a) cell += index[a - depth + lead] * strides[a];
    return inside ? x->cells[static_cast<size_t>(cell)] : kNoExpr;
  });
  return inside ? Rows(out) : Fail("gathers outside its input");
}

Rows RowOps::GatherElements(const RowTensor& x, const RowTensor& indices) {
  const auto axis = static_cast<size_t>(Axis(node_.attributes.Int("axis", 0), x.dims.size()));
  if (!AreIndices(indices) || x.whole != nullptr || !x.opaque.empty())
    return Fail("gathers inside a row");
  RowTensor out;
  out.dims = indices.dims;
  const Dims index_strides = RowMajorStrides(indices.dims);
  Remap(out, [&](Dims index) {
    const int64_t i = indices.numbers->i[static_cast<size_t>(Dot(index, index_strides))];
    index[axis] = i < 0 ? i + x.dims[axis] : i;
    return x.cells[CellAt(x, index)];
  });
  return out;
}

Rows RowOps::ScatterND() {
  const RowTensor &indices = *in_[1], &updates = *in_[2];
  if (!AreIndices(indices) || updates.whole != nullptr) return Fail("scatters to unknown places");
  if (indices.dims.empty() || static_cast<size_t>(indices.dims.back()) > in_[0]->dims.size()) {
    return Fail("has indices of another rank");
  }
  const auto depth = static_cast<size_t>(indices.dims.back());
  const size_t rows = indices.dims.size() - 1;
  std::vector<int> opaque;  // in the data
  for (int axis : updates.opaque) {
    if (static_cast<size_t>(axis) < rows) return Fail("scatters inside a row");
    opaque.push_back(axis - static_cast<int>(rows) + static_cast<int>(depth));
  }
  if (opaque.empty()) opaque = in_[0]->opaque;
  Rows out = AsCells(*in_[0], opaque);
  const Rows cells = AsCells(updates, updates.opaque);
  if (!out || !cells) return std::nullopt;
  if (out->opaque != opaque || (cells->opaque.empty() && !opaque.empty())) {
    return Fail("scatters something else than rows");
  }
  const bool fits = cells->dims.size() == rows + out->dims.size() - depth &&
                    std::equal(indices.dims.begin(), indices.dims.end() - 1, cells->dims.begin());
  if (!fits) return Fail("scatters updates of another shape than its indices");
  const std::string reduction = node_.attributes.String("reduction", "none");
  if (reduction != "none" && reduction != "add") return Fail("scatters by " + reduction);
  const Dims index_strides = RowMajorStrides(indices.dims);
  RowTensor walk;  // iterates over the cells of updates
  walk.dims = cells->dims;
  walk.opaque = cells->opaque;
  Remap(walk, [&](const Dims& index) {
    Dims target(out->dims.size(), 0);
    int64_t row = 0;
    for (size_t a = 0; a < rows; ++a) row += index[a] * index_strides[a];
    for (size_t d = 0; d < depth; ++d) {
      const int64_t i = indices.numbers->i[static_cast<size_t>(row) + d];
      target[d] = i < 0 ? i + out->dims[d] : i;
    }
    for (size_t a = rows; a < index.size(); ++a) target[a - rows + depth] = index[a];
    ExprId& cell = out->cells[CellAt(*out, target)];
    const ExprId update = cells->cells[CellAt(*cells, index)];
    return cell = reduction == "add" ? pool_.Sum({cell, update}) : update;
  });
  return out;
}

Rows RowOps::ScatterElements() {
  const RowTensor &indices = *in_[1], &updates = *in_[2];
  if (!AreIndices(indices) || updates.whole != nullptr) return Fail("scatters to unknown places");
  const auto axis = static_cast<size_t>(Axis(node_.attributes.Int("axis", 0), in_[0]->dims.size()));
  const std::vector<int> opaque = updates.opaque.empty() ? in_[0]->opaque : updates.opaque;
  if (std::find(opaque.begin(), opaque.end(), static_cast<int>(axis)) != opaque.end()) {
    return Fail("scatters inside a row");
  }
  Rows out = AsCells(*in_[0], opaque);
  const Rows cells = AsCells(updates, opaque);
  // The indices of one row of updates must agree: their cells are checked to be uniform.
  const Rows where = AsCells(indices, opaque);
  if (!out || !cells || !where) return std::nullopt;
  if (out->opaque != cells->opaque || where->opaque != cells->opaque ||
      where->dims != cells->dims) {
    return Fail("scatters something else than rows");
  }
  const std::string reduction = node_.attributes.String("reduction", "none");
  if (reduction != "none" && reduction != "add") return Fail("scatters by " + reduction);
  RowTensor walk;
  walk.dims = cells->dims;
  walk.opaque = opaque;
  Remap(walk, [&](Dims index) {
    const size_t at = CellAt(*cells, index);
    const auto target = static_cast<int64_t>(pool_[where->cells[at]].number);
    index[axis] = target < 0 ? target + out->dims[axis] : target;
    ExprId& cell = out->cells[CellAt(*out, index)];
    return cell = reduction == "add" ? pool_.Sum({cell, cells->cells[at]}) : cells->cells[at];
  });
  return out;
}

}  // namespace weir
