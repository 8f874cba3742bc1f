#pragma once
#include <random>

#include "importer/onnx_proto.h"

namespace weir {

// One random change that leaves a model parseable: rewired edges, other ops, attributes, dims,
// bytes.
void MutateModel(onnx::ModelProto& model, std::minstd_rand& random);

}  // namespace weir
