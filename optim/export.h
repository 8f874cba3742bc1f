#pragma once
#include <filesystem>
#include <future>
#include <string>

#include "graph/graph.h"
#include "graph_passes/pipeline.h"
#include "importer/safetensors.h"
#include "optim/tied_weights.h"
#include "optim/training_session.h"

namespace weir {

// What a file of weights holds beside the tensors of each parameter.
struct SavedForm {
  SavedOnce once;         // parameters under one of their names (optim/tied_weights.h)
  Safetensors untrained;  // the rest of the model (optim/untrained_tensors.h)
};

// Weights as safetensors: the trained ones under the framework's names (the file's initializer names where those
// are not known) and layouts, in each tensor's file dtype, and the untrained ones as they are. Atomic. Every rank calls it,
// rank 0 writes, 16 MiB at a time where the tensor's rows are the parameter's, else one tensor at a time; with `world` the others
// wait for it, however long it takes.
void SaveWeights(const TrainingSession& session, const std::filesystem::path& path, int64_t step, Communicator* world = nullptr,
                 const SavedForm& form = {});

// Of what SaveWeights writes at most, but for the file's header.
int64_t WeightsBytes(const TrainingSession& session, const SavedForm& form);

// Returns when `work`, invalid on ranks that have none, is done on all ranks, or throws its error. They meet every half
// second meanwhile, so that no rank keeps the others waiting for longer than a communicator allows. nullptr: one rank.
void AwaitTogether(std::future<void> work, Communicator* world);

// What train should say at its start: that weights cannot go back into the model's file, for it holds them quantised; or "".
std::string LostInExport(const Graph& canonical);

// Writes `weights` (as SaveWeights made them; of tied ones one, or all alike) back into the user's own ONNX graph.
void ExportModel(const Graph& canonical, const std::filesystem::path& source, const NamedTensors& weights,
                 const std::filesystem::path& target);

}  // namespace weir
