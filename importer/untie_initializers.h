#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "importer/onnx_proto.h"

namespace weir {

// Exporters store equal tensors once: the gains (all 1), zero biases and zero matrices of a fresh model come as one
// initializer that many modules read, which would be trained as one. Here every module gets a tensor of its own, named
// after it, when all elements are equal (or, of a vector, not there); one that holds varied values stays shared, as
// tied weights are, and so does a matrix that different operators read (embedding and head). Modules are told apart by
// what the exporter says of its nodes; where it says nothing, each node that adds, scales or normalises by a vector
// has its own.
// Returns what the user should know. A second call, or one on a file that WriteOnnx made, changes nothing.
std::vector<std::string> UntieInitializers(onnx::ModelProto& model, const std::filesystem::path& path);

}  // namespace weir
