#include "graph/parameter.h"

#include <algorithm>

#include "graph/error.h"

namespace weir {
namespace {

std::vector<int64_t> Strides(const Dims& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

const TensorData& Find(const Graph& graph, const std::string& name) {
  const auto it = graph.initializers.find(name);
  WEIR_CHECK(it != graph.initializers.end() && it->second != nullptr, ErrorCode::kInvalidModel,
             "the bytes of initializer '", name,
             "' are missing; give the weights file or start from random values with --init");
  return *it->second;
}

}  // namespace

Dims PieceExtent(const ParameterPiece& piece) {
  if (piece.perm.empty()) return piece.dims;
  Dims extent;
  for (int64_t axis : piece.perm) extent.push_back(piece.dims[static_cast<size_t>(axis)]);
  return extent;
}

void ForEachElement(const ParameterPiece& piece, const Dims& canonical,
                    const std::function<void(int64_t, int64_t)>& body) {
  const size_t rank = piece.dims.size();
  const Dims extent = PieceExtent(piece);
  const auto source_strides = Strides(piece.dims);
  const auto canonical_strides = Strides(canonical);
  const size_t pad = canonical.size() - rank;  // leading canonical axes the piece does not have
  int64_t base = 0;
  for (size_t a = 0; a < piece.offset.size(); ++a) base += piece.offset[a] * canonical_strides[a];
  const int64_t count = NumElements(extent);
  Dims index(rank, 0);  // over extent
  for (int64_t n = 0; n < count; ++n) {
    int64_t source = 0, target = base;
    for (size_t a = 0; a < rank; ++a) {
      const size_t source_axis = piece.perm.empty() ? a : static_cast<size_t>(piece.perm[a]);
      int64_t from = index[a];
      if (static_cast<int>(a) == piece.deinterleave_axis) {
        const int64_t half = extent[a] / 2;
        from = from < half ? 2 * from : 2 * (from - half) + 1;
      }
      source += from * source_strides[source_axis];
      target += index[a] * canonical_strides[a + pad];
    }
    body(source, target);
    for (size_t a = rank; a-- > 0;) {
      if (++index[a] < extent[a]) break;
      index[a] = 0;
    }
  }
}

bool HasAllData(const Graph& graph, const Value& parameter) {
  for (const ParameterPiece& piece : parameter.parameter->initializers) {
    const auto it = graph.initializers.find(piece.tensor);
    if (it == graph.initializers.end() || it->second == nullptr) return false;
  }
  return true;
}

Dims WholeDims(const Value& parameter) {
  Dims dims = ToDims(parameter.shape);
  const auto& shard = parameter.parameter->shard;
  if (shard) dims[0] = shard->total;
  return dims;
}

namespace {

struct Rows {
  int64_t begin, end;
};

// Rows of the canonical axis 0 that a piece fills.
Rows RowsOf(const ParameterPiece& piece, const Dims& canonical) {
  const int64_t begin = piece.offset.empty() ? 0 : piece.offset[0];
  return {begin, begin + (piece.dims.size() < canonical.size() ? 1 : PieceExtent(piece)[0])};
}

// Copies the piece's elements in `held` rows; reads no others when axis 0 leads in the tensor too.
void LoadRows(const TensorData& source, const ParameterPiece& piece, const Dims& whole, const Rows& held,
              std::vector<float>& values) {
  const Rows filled = RowsOf(piece, whole);
  const Rows rows = {std::max(filled.begin, held.begin), std::min(filled.end, held.end)};
  if (rows.begin >= rows.end) return;
  const int64_t row = NumElements(whole) / whole[0];
  const bool leads = piece.dims.size() == whole.size() && (piece.perm.empty() || piece.perm[0] == 0) &&
                     piece.deinterleave_axis != 0;
  if (!leads) {
    const std::vector<float> all = source.AsFloats();
    ForEachElement(piece, whole, [&](int64_t from, int64_t to) {
      if (to < rows.begin * row || to >= rows.end * row) return;
      values[static_cast<size_t>(to - held.begin * row)] = all[static_cast<size_t>(from)];
    });
    return;
  }
  ParameterPiece part = piece;
  const int64_t piece_row = NumElements(piece.dims) / piece.dims[0];
  part.dims[0] = rows.end - rows.begin;
  part.offset.resize(whole.size());
  part.offset[0] = rows.begin - held.begin;
  std::vector<float> floats(static_cast<size_t>(NumElements(part.dims)));
  source.ReadFloats((rows.begin - filled.begin) * piece_row, floats);
  Dims dims = whole;
  dims[0] = held.end - held.begin;
  ForEachElement(part, dims, [&](int64_t from, int64_t to) {
    values[static_cast<size_t>(to)] = floats[static_cast<size_t>(from)];
  });
}

}  // namespace

std::vector<float> LoadParameter(const Graph& graph, const Value& parameter) {
  const Dims dims = ToDims(parameter.shape);
  std::vector<float> values(static_cast<size_t>(NumElements(dims)));
  const auto& shard = parameter.parameter->shard;
  for (const ParameterPiece& piece : parameter.parameter->initializers) {
    const TensorData& source = Find(graph, piece.tensor);
    if (shard) {
      LoadRows(source, piece, WholeDims(parameter), {shard->first, shard->first + dims[0]}, values);
      continue;
    }
    const std::vector<float> floats = source.AsFloats();
    ForEachElement(piece, dims, [&](int64_t from, int64_t to) {
      values[static_cast<size_t>(to)] = floats[static_cast<size_t>(from)];
    });
  }
  return values;
}

std::vector<float> ExtractPiece(const ParameterPiece& piece, const Dims& canonical,
                                std::span<const float> values) {
  std::vector<float> source(static_cast<size_t>(NumElements(piece.dims)));
  ForEachElement(piece, canonical, [&](int64_t from, int64_t to) {
    source[static_cast<size_t>(from)] = values[static_cast<size_t>(to)];
  });
  return source;
}

}  // namespace weir
