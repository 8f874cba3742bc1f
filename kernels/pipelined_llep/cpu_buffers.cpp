#include "kernels/pipelined_llep/cpu_buffers.h"

namespace weir {

std::vector<ChunkRoutes> MakeRoutes(const DispatchShape& shape, WorkspaceLayout& layout) {
  std::vector<ChunkRoutes> routes;
  for (size_t set = 0; set < BufferSets(shape); ++set) routes.emplace_back(shape, layout);
  return routes;
}

std::vector<int64_t> ExpertPartBytes(const ExpertLayer& layer, bool gate_up_bias, bool down_bias) {
  const int64_t h = layer.h, i = layer.i;
  std::vector<int64_t> bytes = {2 * i * h * kFloatBytes, h * i * kFloatBytes};
  if (gate_up_bias) bytes.push_back(2 * i * kFloatBytes);
  if (down_bias) bytes.push_back(h * kFloatBytes);
  return bytes;
}

std::vector<const std::byte*> ExpertParts(const ExpertsInputs& in) {
  std::vector<const std::byte*> parts;
  for (const float* part : {in.gate_up, in.down, in.gate_up_bias, in.down_bias}) {
    if (part != nullptr) parts.push_back(reinterpret_cast<const std::byte*>(part));
  }
  return parts;
}

ExpertWeights FindExpert(const ExpertBank& bank, const ExpertsInputs& in, int64_t expert) {
  size_t next = 0;
  const auto part = [&](const float* present) {
    return present == nullptr ? nullptr : reinterpret_cast<const float*>(bank.Part(expert, next++));
  };
  const float *gate_up = part(in.gate_up), *down = part(in.down),
              *gate_up_bias = part(in.gate_up_bias);
  return {gate_up, down, gate_up_bias, part(in.down_bias)};
}

}  // namespace weir
