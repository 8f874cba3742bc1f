#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "importer/onnx_proto.h"

// What ONNX has no field for and WriteOnnx keeps in metadata, so that ReadOnnx gives the same
// graph.
namespace weir {

// Initializers under this prefix are the user's tensors that parameters are assembled from.
inline constexpr char kSourcePrefix[] = "weir.source/";

// Of the model, under "weir.graph".
struct GraphMetadata {
  std::map<std::string, Role> roles;  // values that are neither inputs, constants nor activations
  std::map<std::string, ParameterInfo> parameters;
  std::vector<std::string> notices, stripped;
};
void SetMetadata(onnx::ModelProto& model, const GraphMetadata& metadata);
// nullopt for files of other writers; throws InvalidModel when ours is damaged.
std::optional<GraphMetadata> GetMetadata(const onnx::ModelProto& model);
bool IsWrittenByWeir(const onnx::ModelProto& model);  // whether GetMetadata finds any

// Of a node: phase, source, and the float attributes that ONNX's float32 cannot hold.
void SetMetadata(onnx::NodeProto& proto, const Node& node);
void RestoreMetadata(const onnx::NodeProto& proto, Node& node);

// Inverse of ToString(Dim); unknown for other text.
Dim ParseDim(const std::string& text);

}  // namespace weir
