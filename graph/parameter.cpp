#include "graph/parameter.h"

#include "graph/parameter_lines.h"

namespace weir {

Dims PieceExtent(const ParameterPiece& piece) {
  if (piece.perm.empty()) return piece.dims;
  Dims extent;
  for (int64_t axis : piece.perm) extent.push_back(piece.dims[static_cast<size_t>(axis)]);
  return extent;
}

void ForEachElement(const ParameterPiece& piece, const Dims& canonical,
                    const std::function<void(int64_t, int64_t)>& body) {
  PieceLines(piece, canonical).ForEach([&](const PieceLine& line) {
    for (int64_t i = 0; i < line.count; ++i) body(line.source + i * line.stride, line.target + i);
  });
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

std::vector<float> LoadParameter(const Graph& graph, const Value& parameter) {
  std::vector<float> values(static_cast<size_t>(NumElements(ToDims(parameter.shape))));
  LoadParameterPart(graph, parameter, 0, values);
  return values;
}

std::vector<float> ExtractPiece(const ParameterPiece& piece, const Dims& canonical,
                                std::span<const float> values) {
  std::vector<float> source(static_cast<size_t>(NumElements(piece.dims)));
  PieceLines(piece, canonical).ForEach([&](const PieceLine& line) {
    for (int64_t i = 0; i < line.count; ++i) source[static_cast<size_t>(line.source + i * line.stride)] = values[static_cast<size_t>(line.target + i)];
  });
  return source;
}

}  // namespace weir
