#pragma once
#include <functional>
#include <string>

#include "importer/onnx_proto.h"

namespace weir {

// Where a tensor stands in a model.
struct TensorPlace {
  std::string name;  // of the initializer or the output of the Constant node; "" for other tensors
  int depth = 0;     // 0 = main graph, more in subgraphs, -1 in local functions
};
// Calls body for every tensor a model holds: initializers, attributes, subgraphs, functions.
void ForEachTensor(onnx::ModelProto& model,
                   const std::function<void(onnx::TensorProto&, const TensorPlace&)>& body);

}  // namespace weir
