#pragma once
#include <memory>
#include <string>

#include "backend/kernel.h"
#include "cli/options.h"
#include "graph_passes/pipeline.h"
#include "importer/safetensors.h"

namespace weir {

// --names, --freeze, --disable-pass, --print-after: shared by every command that canonicalises.
po::options_description ModelOptions();

// The weights file that a flag names; errors name the flag.
Safetensors ReadWeights(const char* flag, const po::variables_map& values);

// Reads and canonicalises a model as the flags say.
std::unique_ptr<Graph> LoadCanonical(const std::string& model, const po::variables_map& values, PassManager& passes);

// Lines about weights of the model's own file that are NaN or infinite: why those of a run became so. "" when there are none.
std::string NonFiniteWeights(const Graph& canonical);

// What training of that graph leaves as it is (optim/untrained_tensors.h).
Safetensors LoadUntrained(const Graph& canonical, const po::variables_map& values);

// The device that --device names. Throws now, not after canonicalising, when this machine or build has none.
DeviceKind ChosenDevice(const std::string& name);

}  // namespace weir
