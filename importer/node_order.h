#pragma once
#include <functional>
#include <string>
#include <vector>

#include "importer/onnx_proto.h"

namespace weir {

using ProtoNodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

// The nodes of one graph or function body in an order in which every name is made before it is
// used; the file's order where it allows. `is_defined` tells the names known from outside (inputs,
// initializers, enclosing graphs), `results` are the names the body must make. Throws one
// InvalidModel listing every name made twice, every name nobody makes, or a cycle.
std::vector<const onnx::NodeProto*> OrderNodes(
    const ProtoNodes& nodes, const std::vector<std::string>& results,
    const std::function<bool(const std::string&)>& is_defined, const std::string& where);

}  // namespace weir
