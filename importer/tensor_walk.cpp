#include "importer/tensor_walk.h"

namespace weir {
namespace {

using Body = std::function<void(onnx::TensorProto&, const TensorPlace&)>;

void WalkSparse(onnx::SparseTensorProto& tensor, int depth, const Body& body) {
  if (tensor.has_values()) body(*tensor.mutable_values(), {"", depth});
  if (tensor.has_indices()) body(*tensor.mutable_indices(), {"", depth});
}

void WalkGraph(onnx::GraphProto& graph, int depth, const Body& body);

void WalkNode(onnx::NodeProto& node, int depth, const Body& body) {
  const bool constant = node.op_type() == "Constant" && node.output_size() == 1;
  for (auto& attribute : *node.mutable_attribute()) {
    const bool value = constant && attribute.name() == "value";
    if (attribute.has_t()) body(*attribute.mutable_t(), {value ? node.output(0) : "", depth});
    for (auto& tensor : *attribute.mutable_tensors()) body(tensor, {"", depth});
    if (attribute.has_sparse_tensor()) WalkSparse(*attribute.mutable_sparse_tensor(), depth, body);
    for (auto& sparse : *attribute.mutable_sparse_tensors()) WalkSparse(sparse, depth, body);
    const int inner = depth < 0 ? depth : depth + 1;
    if (attribute.has_g()) WalkGraph(*attribute.mutable_g(), inner, body);
    for (auto& graph : *attribute.mutable_graphs()) WalkGraph(graph, inner, body);
  }
}

void WalkGraph(onnx::GraphProto& graph, int depth, const Body& body) {
  for (auto& tensor : *graph.mutable_initializer()) body(tensor, {tensor.name(), depth});
  for (auto& sparse : *graph.mutable_sparse_initializer()) WalkSparse(sparse, depth, body);
  for (auto& node : *graph.mutable_node()) WalkNode(node, depth, body);
}

}  // namespace

void ForEachTensor(onnx::ModelProto& model, const Body& body) {
  WalkGraph(*model.mutable_graph(), 0, body);
  for (auto& function : *model.mutable_functions()) {
    for (auto& node : *function.mutable_node()) WalkNode(node, -1, body);
  }
}

}  // namespace weir
