#pragma once
#include <filesystem>
#include <string>

#include "graph/graph.h"
#include "graph_passes/pipeline.h"
#include "optim/training_session.h"

namespace weir {

// Trained weights as safetensors under the framework's names (the file's initializer names where those
// are not known) and layouts, in each tensor's file dtype; tied weights once. Atomic. Every rank calls it,
// rank 0 writes.
void SaveWeights(const TrainingSession& session, const std::filesystem::path& path, int64_t step);

// Writes `weights` (as SaveWeights made them) back into the user's own ONNX graph.
// What train should say at its start: that weights cannot go back into the model's file, for it holds them quantised; or "".
std::string LostInExport(const Graph& canonical);

void ExportModel(const Graph& canonical, const std::filesystem::path& source, const NamedTensors& weights,
                 const std::filesystem::path& target);

}  // namespace weir
