#include <algorithm>
#include <numeric>

#include "graph_passes/row_ops_cells.h"
#include "graph_passes/row_trace.h"

namespace weir {

using Rows = std::optional<RowTensor>;

bool RowOps::IsMovement(const std::string& op) {
  for (const char* name : {"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Tile",
                           "Transpose", "Cast", "CastLike", "Identity", "ConstantOfShape"}) {
    if (op == name) return true;
  }
  return false;
}

// Leading axes of a constant become enumerated; its last `opaque_axes` stay one term. One leading
// axis may be longer than 1: that of the experts.
Rows RowOps::Enumerated(const RowTensor& x, size_t opaque_axes) {
  if (x.whole == nullptr) return x;
  const size_t rank = x.dims.size();
  opaque_axes = std::min(opaque_axes, rank);
  const size_t lead = rank - opaque_axes;
  RowTensor out;
  out.dims = x.dims;
  int axis = -1;
  int64_t count = 1;
  for (size_t a = 0; a < lead; ++a) {
    if (x.dims[a] == 1 && (lead > 1 || rank > 3)) continue;
    if (axis >= 0)
      return Fail(
          StrCat("constant '", x.whole->name, "' is no stack of weights: ", ToString(x.dims)));
    axis = static_cast<int>(x.perm[a]);
    count = x.dims[a];
  }
  for (size_t a = lead; a < rank; ++a) out.opaque.push_back(static_cast<int>(a));
  const bool transposed = opaque_axes == 2 && x.perm[rank - 2] > x.perm[rank - 1];
  for (int64_t n = 0; n < count; ++n) {
    const ExprId tensor = pool_.Tensor(x.whole, axis, axis < 0 ? -1 : n);
    out.cells.push_back(transposed ? pool_.Transposed(tensor) : tensor);
  }
  return out;
}

Rows RowOps::Transpose(const RowTensor& x, const std::vector<int64_t>& perm) {
  const size_t rank = x.dims.size();
  std::vector<bool> seen(rank, false);
  for (int64_t axis : perm) seen[static_cast<size_t>(Axis(axis, rank))] = true;
  if (perm.size() != rank || std::find(seen.begin(), seen.end(), false) != seen.end()) {
    return Fail("is no permutation");
  }
  RowTensor out;
  for (int64_t axis : perm) out.dims.push_back(x.dims[static_cast<size_t>(axis)]);
  if (x.whole != nullptr) {
    out.whole = x.whole;
    for (int64_t axis : perm) out.perm.push_back(x.perm[static_cast<size_t>(axis)]);
    return out;
  }
  std::vector<int> sources;  // opaque source axes in output order
  for (size_t a = 0; a < rank; ++a) {
    if (std::find(x.opaque.begin(), x.opaque.end(), perm[a]) != x.opaque.end()) {
      out.opaque.push_back(static_cast<int>(a));
      sources.push_back(static_cast<int>(perm[a]));
    }
  }
  const bool swapped = sources.size() == 2 && sources[0] > sources[1];
  const Dims source_strides = CellStrides(x);
  Remap(out, [&](const Dims& index) {
    int64_t at = 0;
    for (size_t a = 0; a < rank; ++a) at += index[a] * source_strides[static_cast<size_t>(perm[a])];
    const ExprId cell = x.cells[static_cast<size_t>(at)];
    return swapped ? pool_.Transposed(cell) : cell;
  });
  if (std::find(out.cells.begin(), out.cells.end(), kNoExpr) != out.cells.end()) {
    return Fail("transposes a matrix that is no constant");
  }
  return out;
}

// The dims that Reshape, Unsqueeze, Squeeze and Flatten give their input.
std::optional<Dims> RowOps::ViewDims(const std::string& op) const {
  const Dims& x = in_[0]->dims;
  Dims dims;
  if (op == "Flatten") {
    const int64_t at = node_.attributes.Int("axis", 1);
    const auto axis =
        at == static_cast<int64_t>(x.size()) ? x.size() : static_cast<size_t>(Axis(at, x.size()));
    dims = {1, 1};
    for (size_t a = 0; a < x.size(); ++a) dims[a < axis ? 0 : 1] *= x[a];
    return dims;
  }
  const auto ints = Ints(1, "axes");
  if (op == "Reshape") {
    if (!ints) return std::nullopt;
    int64_t known = 1, open = -1;
    for (size_t a = 0; a < ints->size(); ++a) {
      const bool copy =
          (*ints)[a] == 0 && node_.attributes.Int("allowzero", 0) == 0 && a < x.size();
      dims.push_back(copy ? x[a] : (*ints)[a]);
      if (dims[a] < 0) open = static_cast<int64_t>(a);
      known *= dims[a] < 0 ? 1 : dims[a];
    }
    if (open >= 0) dims[static_cast<size_t>(open)] = known == 0 ? 0 : NumElements(x) / known;
    return dims;
  }
  const bool insert = op == "Unsqueeze";
  if (!ints && (insert || in_.size() > 1)) return std::nullopt;
  const size_t rank = x.size() + (insert ? ints->size() : 0);
  std::vector<bool> listed(rank, false);
  for (int64_t axis : ints.value_or(std::vector<int64_t>{}))
    listed[static_cast<size_t>(Axis(axis, rank))] = true;
  if (insert &&
      static_cast<size_t>(std::count(listed.begin(), listed.end(), true)) != ints->size()) {
    return std::nullopt;
  }
  size_t from = 0;
  for (size_t a = 0; a < rank; ++a) {
    if (insert) {
      dims.push_back(listed[a] ? 1 : x[from++]);
    } else if (ints ? !listed[a] : x[a] != 1) {
      dims.push_back(x[a]);
    }
  }
  return dims;
}

Rows RowOps::Reshape(const RowTensor& source, Dims dims) {
  const Rows enumerated = Enumerated(source, source.dims.size() >= 3 ? 2 : 1);
  if (!enumerated) return std::nullopt;
  const RowTensor& x = *enumerated;
  if (NumElements(dims) != NumElements(x.dims)) return Fail("changes the number of elements");
  RowTensor out;
  out.dims = dims;
  out.cells = x.cells;
  if (x.opaque.empty()) return out;
  const auto product = [](const Dims& d, size_t from, size_t to) {
    int64_t p = 1;
    for (size_t a = from; a < to; ++a) p *= d[a];
    return p;
  };
  const auto first = static_cast<size_t>(x.opaque[0]);
  const size_t count = x.opaque.size();
  const int64_t lead = product(x.dims, 0, first);
  for (size_t q = 0; q + count <= dims.size(); ++q) {
    if (product(dims, 0, q) != lead) continue;
    bool same = true;
    for (size_t a = 0; a < count; ++a) same = same && dims[q + a] == x.dims[first + a];
    if (!same ||
        product(dims, q + count, dims.size()) != product(x.dims, first + count, x.dims.size()))
      continue;
    for (size_t a = 0; a < count; ++a) out.opaque.push_back(static_cast<int>(q + a));
    return out;
  }
  // A vector at the end cut in two: [2, I] by halves or [I, 2] by turns.
  const int64_t width = x.dims[first];
  if (count != 1 || first + 1 != x.dims.size()) return Fail("reshapes through a row");
  for (size_t q = 0; q + 1 < dims.size(); ++q) {
    if (product(dims, 0, q) != lead || dims[q] * dims[q + 1] != width || q + 2 != dims.size())
      continue;
    const bool halves = dims[q] == 2;
    if (!halves && dims[q + 1] != 2) continue;
    out.opaque = {static_cast<int>(halves ? q + 1 : q)};
    out.cells.clear();
    for (ExprId cell : x.cells) {
      for (int64_t part = 0; part < 2; ++part) {
        out.cells.push_back(
            pool_.Slice(cell, halves ? part * (width / 2) : part, halves ? 1 : 2, width / 2));
      }
    }
    return out;
  }
  return Fail("reshapes through a row");
}

Rows RowOps::Expand(const RowTensor& source, const Dims& dims) {
  const Rows x = Enumerated(source, source.dims.size() >= 3 ? 2 : 1);
  if (!x) return std::nullopt;
  RowTensor out;
  out.dims = BroadcastDims(x->dims, dims);
  const size_t shift = out.dims.size() - x->dims.size();
  for (int axis : x->opaque) {
    const size_t to = static_cast<size_t>(axis) + shift;
    if (out.dims[to] != x->dims[static_cast<size_t>(axis)]) return Fail("expands along a row");
    out.opaque.push_back(static_cast<int>(to));
  }
  const Dims strides = BroadcastStrides(*x, out.dims.size());
  Remap(out, [&](const Dims& index) { return x->cells[static_cast<size_t>(Dot(index, strides))]; });
  return out;
}

Rows RowOps::Tile(const RowTensor& x, const std::vector<int64_t>& repeats) {
  if (x.whole != nullptr || repeats.size() != x.dims.size()) return Fail("tiles a constant");
  RowTensor out = x;
  out.cells.clear();
  for (size_t a = 0; a < repeats.size(); ++a) {
    const bool opaque =
        std::find(x.opaque.begin(), x.opaque.end(), static_cast<int>(a)) != x.opaque.end();
    if (opaque && repeats[a] != 1) return Fail("tiles along a row");
    out.dims[a] *= repeats[a];
  }
  const Dims strides = CellStrides(x);
  Remap(out, [&](Dims index) {
    for (size_t a = 0; a < index.size(); ++a) index[a] %= std::max<int64_t>(1, x.dims[a]);
    return x.cells[static_cast<size_t>(Dot(index, strides))];
  });
  return out;
}

Rows RowOps::SlicePart(const RowTensor& x, int64_t axis, int64_t start, int64_t step,
                       int64_t count) {
  const auto at = static_cast<size_t>(axis);
  RowTensor out = x;
  out.dims[at] = count;
  out.cells.clear();
  const bool opaque =
      std::find(x.opaque.begin(), x.opaque.end(), static_cast<int>(axis)) != x.opaque.end();
  if (opaque && x.opaque.size() == 2) return Fail("slices a matrix");
  if (opaque) {
    for (ExprId cell : x.cells) {
      const bool all = start == 0 && step == 1 && count == x.dims[at];
      out.cells.push_back(all ? cell : pool_.Slice(cell, start, step, count));
    }
    return out;
  }
  const Dims strides = CellStrides(x);
  Remap(out, [&](Dims index) {
    index[at] = start + index[at] * step;
    return x.cells[static_cast<size_t>(Dot(index, strides))];
  });
  return out;
}

Rows RowOps::Slice() {
  const auto starts = Ints(1, "starts"), ends = Ints(2, "ends");
  auto axes = Ints(3, "axes");
  const auto steps = Ints(4);
  if (!starts || !ends) return Fail("slices at unknown places");
  const size_t cuts = starts->size();
  if (ends->size() != cuts || (axes && axes->size() != cuts) || (steps && steps->size() != cuts))
    return Fail("slices with lists of different lengths");
  Rows x = Enumerated(*in_[0], in_[0]->dims.size() - 1);
  for (size_t k = 0; x && k < starts->size(); ++k) {
    const int64_t axis = Axis(axes ? (*axes)[k] : static_cast<int64_t>(k), x->dims.size());
    const int64_t size = x->dims[static_cast<size_t>(axis)], step = steps ? (*steps)[k] : 1;
    if (step < 1) return Fail("slices backwards");
    const auto clamp = [size](int64_t at) {
      return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
    };
    const int64_t start = clamp((*starts)[k]), end = clamp((*ends)[k]);
    x = SlicePart(*x, axis, start, step, end > start ? (end - start - 1) / step + 1 : 0);
  }
  return x;
}

std::vector<RowTensor> RowOps::Split() {
  const Rows x = Enumerated(*in_[0], in_[0]->dims.size() - 1);
  if (!x) return {};
  const int64_t axis = Axis(node_.attributes.Int("axis", 0), x->dims.size());
  const int64_t size = x->dims[static_cast<size_t>(axis)];
  auto lengths = Ints(1, "split");
  const auto parts = static_cast<int64_t>(node_.outputs.size());
  if (!lengths) lengths = std::vector<int64_t>(node_.outputs.size(), DivCeil(size, parts));
  std::vector<RowTensor> outputs;
  int64_t start = 0;
  for (int64_t length : *lengths) {
    length = std::clamp<int64_t>(length, 0, size - start);
    Rows part = SlicePart(*x, axis, start, 1, length);
    if (!part) return {};
    outputs.push_back(std::move(*part));
    start += length;
  }
  return outputs;
}

Rows RowOps::Concat() {
  const int64_t axis = Axis(node_.attributes.Int("axis", 0), in_[0]->dims.size());
  const auto at = static_cast<size_t>(axis);
  std::vector<int> opaque;
  for (const RowTensor* x : in_) {
    if (x->whole != nullptr) return Fail("joins constants");
    if (!x->opaque.empty()) opaque = x->opaque;
  }
  if (std::find(opaque.begin(), opaque.end(), static_cast<int>(axis)) != opaque.end())
    return Fail("joins rows");
  std::vector<RowTensor> parts;
  RowTensor out;
  for (const RowTensor* x : in_) {
    Rows part = AsCells(*x, opaque);
    if (!part) return std::nullopt;
    if (part->opaque != opaque || part->dims.size() != in_[0]->dims.size()) {
      return Fail("joins rows with something else");
    }
    parts.push_back(std::move(*part));
  }
  out.dims = parts[0].dims;
  out.dims[at] = 0;
  out.opaque = opaque;
  for (const RowTensor& part : parts) out.dims[at] += part.dims[at];
  Remap(out, [&](Dims index) {
    size_t k = 0;
    while (index[at] >= parts[k].dims[at]) index[at] -= parts[k++].dims[at];
    return parts[k].cells[CellAt(parts[k], index)];
  });
  return out;
}

}  // namespace weir
