#pragma once
#include "kernels/experts/cpu.h"
#include "kernels/pipelined_llep/chunk_routes.h"
#include "kernels/pipelined_llep/dispatch.h"
#include "kernels/pipelined_llep/foreign_experts.h"

namespace weir {

// float32 rows and weights in host memory.
inline constexpr int64_t kFloatBytes = sizeof(float);
inline float* Home(const Lane& lane) { return reinterpret_cast<float*>(lane.home); }
inline float* Away(const Lane& lane) { return reinterpret_cast<float*>(lane.away); }

// One for each set of buffers.
std::vector<ChunkRoutes> MakeRoutes(const DispatchShape& shape, WorkspaceLayout& layout);

// The experts of an ExpertBank: gate_up, down, and the biases there are.
std::vector<int64_t> ExpertPartBytes(const ExpertLayer& layer, bool gate_up_bias, bool down_bias);
std::vector<const std::byte*> ExpertParts(const ExpertsInputs& in);
ExpertWeights FindExpert(const ExpertBank& bank, const ExpertsInputs& in, int64_t expert);

}  // namespace weir
