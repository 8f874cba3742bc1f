#include "graph/parameter_lines.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "graph/error.h"
#include "graph/parameter.h"

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

template <class T>
void Copy(const std::byte* bytes, const PieceLine& line, float* out, auto convert) {
  for (int64_t i = 0; i < line.count; ++i) {
    T value;  // file offsets may be unaligned, so copy
    std::memcpy(&value, bytes + (line.source + i * line.stride) * static_cast<int64_t>(sizeof(T)), sizeof(T));
    out[i] = convert(value);
  }
}

void CopyLine(const TensorData& source, const PieceLine& line, float* out) {
  const std::byte* bytes = source.bytes().data();
  switch (source.dtype()) {
    case DType::kFloat32: return Copy<float>(bytes, line, out, [](float x) { return x; });
    case DType::kFloat64: return Copy<double>(bytes, line, out, [](double x) { return static_cast<float>(x); });
    case DType::kFloat16: return Copy<uint16_t>(bytes, line, out, HalfToFloat);
    case DType::kBFloat16: return Copy<uint16_t>(bytes, line, out, [](uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); });
    default: break;
  }
  throw Error(ErrorCode::kInternal, StrCat(DTypeName(source.dtype()), " read as float"));
}

}  // namespace

PieceLines::PieceLines(const ParameterPiece& piece, const Dims& canonical) {
  const Dims extent = PieceExtent(piece);
  const auto source = Strides(piece.dims), target = Strides(canonical);
  for (size_t a = 0; a < piece.offset.size(); ++a) base_ += piece.offset[a] * target[a];
  const size_t pad = canonical.size() - extent.size();  // leading canonical axes the piece does not have
  for (size_t a = 0; a < extent.size(); ++a) {
    const size_t axis = piece.perm.empty() ? a : static_cast<size_t>(piece.perm[a]);
    outer_.push_back({extent[a], source[axis], target[a + pad], static_cast<int>(a) == piece.deinterleave_axis});
  }
  if (!outer_.empty()) {
    inner_ = outer_.back();
    outer_.pop_back();
  }
  for (const Axis& axis : outer_) lines_ *= axis.size;
}

PieceLine PieceLines::At(int64_t line) const {
  PieceLine at = {0, inner_.source, base_, inner_.size};
  for (size_t a = outer_.size(); a-- > 0;) {
    const int64_t i = line % outer_[a].size;
    line /= outer_[a].size;
    at.source += outer_[a].From(i) * outer_[a].source;
    at.target += i * outer_[a].target;
  }
  return at;
}

void PieceLines::ForEach(int64_t first, int64_t last, const std::function<void(const PieceLine&)>& body) const {
  const auto cut = [&](const PieceLine& line) {
    const int64_t begin = std::max(first - line.target, int64_t{0}), end = std::min(last - line.target, line.count);
    if (begin < end) body({line.source + begin * line.stride, line.stride, line.target + begin, end - begin});
  };
  int64_t from = 0;  // lines before it end before `first`
  for (int64_t to = lines_; from < to;) {
    const int64_t middle = from + (to - from) / 2;
    if (At(middle).target + inner_.size <= first) {
      from = middle + 1;
    } else {
      to = middle;
    }
  }
  for (int64_t l = from; l < lines_; ++l) {
    const PieceLine line = At(l);
    if (line.target >= last) return;
    if (!inner_.deinterleaved) {
      cut(line);
      continue;
    }
    const int64_t half = inner_.size / 2;
    cut({line.source, 2 * line.stride, line.target, half});
    cut({line.source + line.stride, 2 * line.stride, line.target + half, inner_.size - half});
  }
}

void PieceLines::ForEach(const std::function<void(const PieceLine&)>& body) const {
  if (lines_ > 0) ForEach(base_, At(lines_ - 1).target + inner_.size, body);
}

void LoadParameterPart(const Graph& graph, const Value& parameter, int64_t first, std::span<float> out) {
  const Dims dims = WholeDims(parameter);
  const auto& shard = parameter.parameter->shard;
  if (shard) first += shard->first * (NumElements(dims) / shard->total);
  std::ranges::fill(out, 0.0f);
  for (const ParameterPiece& piece : parameter.parameter->initializers) {
    const TensorData& source = Find(graph, piece.tensor);
    PieceLines(piece, dims).ForEach(first, first + std::ssize(out), [&](const PieceLine& line) {
      CopyLine(source, line, out.data() + (line.target - first));
    });
  }
}

}  // namespace weir
