#include "graph_passes/canonical_reader.h"

#include <limits>
#include <random>

#include "graph/parameter.h"

namespace weir {

CanonicalReader::CanonicalReader(Dims dims, const std::vector<ParameterPiece>& pieces,
                                 const Lookup& lookup)
    : dims_(std::move(dims)) {
  for (const ParameterPiece& piece : pieces) {
    Source source{piece, PieceExtent(piece), Dims(piece.dims.size(), 1), lookup(piece.tensor)};
    for (size_t a = piece.dims.size(); a-- > 1;)
      source.strides[a - 1] = source.strides[a] * piece.dims[a];
    source.piece.offset.resize(dims_.size(), 0);
    complete_ = complete_ && source.data != nullptr;
    sources_.push_back(std::move(source));
  }
}

float CanonicalReader::At(const Dims& index) const {
  for (const Source& source : sources_) {
    const size_t rank = source.extent.size(), pad = dims_.size() - rank;
    int64_t at = 0;
    bool inside = true;
    for (size_t a = 0; a < dims_.size() && inside; ++a) {
      int64_t i = index[a] - source.piece.offset[a];
      const int64_t size = a < pad ? 1 : source.extent[a - pad];
      inside = i >= 0 && i < size;
      if (a < pad || !inside) continue;
      const size_t axis = a - pad;
      if (static_cast<int>(axis) == source.piece.deinterleave_axis)
        i = i < size / 2 ? 2 * i : 2 * (i - size / 2) + 1;
      at +=
          i *
          source.strides[source.piece.perm.empty() ? axis
                                                   : static_cast<size_t>(source.piece.perm[axis])];
    }
    if (!inside || source.data == nullptr) continue;
    float value = 0;
    source.data->ReadFloats(at, std::span(&value, 1));
    return value;
  }
  return std::numeric_limits<float>::quiet_NaN();
}

std::vector<Dims> CanonicalReader::Probes(const Dims& dims, int count) {
  std::mt19937 random(1);
  std::vector<Dims> probes;
  if (NumElements(dims) == 0) return probes;
  for (int n = 0; n < count; ++n) {
    Dims index;
    for (int64_t dim : dims) {
      const auto draw = static_cast<int64_t>(random() % static_cast<uint64_t>(dim));
      index.push_back(n == 0 ? 0 : n == 1 ? dim - 1 : draw);
    }
    probes.push_back(std::move(index));
  }
  return probes;
}

float Rounded(float value, DType rounding) {
  if (rounding == DType::kBFloat16) return BFloat16ToFloat(FloatToBFloat16(value));
  if (rounding == DType::kFloat16) return HalfToFloat(FloatToHalf(value));
  return value;
}

DType Coarser(DType a, DType b) {
  const auto digits = [](DType dtype) {
    return dtype == DType::kBFloat16 ? 8 : dtype == DType::kFloat16 ? 11 : 24;
  };
  const DType coarser = digits(a) <= digits(b) ? a : b;
  return coarser == DType::kFloat64 ? DType::kFloat32 : coarser;
}

}  // namespace weir
