#include "graph/error.h"
#include "graph_passes/dequantize.h"
#include "graph_passes/lower_contrib.h"
#include "graph_passes/match.h"
#include "graph_passes/notices.h"

namespace weir {
namespace {

bool LowerMatMulNBits(Graph& graph, Node& node) {
  const Attributes& a = node.attributes;
  WEIR_CHECK(node.in(4) == nullptr, ErrorCode::kUnsupportedOp, NameOf(node),
             ": group indices (g_idx) permute the blocks; export without act-order");
  WEIR_CHECK(a.Int("weight_prepacked", 0) == 0, ErrorCode::kUnsupportedOp, NameOf(node),
             ": weight_prepacked ", a.Int("weight_prepacked", 0),
             " is the private layout of one execution provider; export without prepacking");
  QuantizedTensor tensor;
  tensor.packed = node.in(1);
  tensor.scales = node.in(2);
  tensor.zero_points = node.in(3);
  tensor.rows = {a.Int("N")};
  tensor.columns = a.Int("K");
  tensor.bits = a.Int("bits", 4);
  tensor.block_size = a.Int("block_size");
  Builder builder = At(graph, node);
  Value* weight = builder.Op("Transpose", {Dequantized(graph, tensor, node)},
                             {{"perm", std::vector<int64_t>{1, 0}}});
  Value* y = builder.Op("MatMul", {node.in(0), weight});
  if (Value* bias = node.in(5)) y = builder.Op("Add", {y, bias});
  graph.ReplaceUses(node.out(0), y);
  return true;
}

bool LowerGatherBlockQuantized(Graph& graph, Node& node) {
  const Attributes& a = node.attributes;
  Value* data = node.in(0);
  const bool rows = a.Int("gather_axis", 0) == 0 && data->has_shape && data->shape.size() == 2;
  if (!rows || data->role != Role::kConstant || data->dtype != DType::kUInt8) return false;
  QuantizedTensor tensor;
  tensor.packed = data;
  tensor.scales = node.in(2);
  tensor.zero_points = node.in(3);
  tensor.bits = a.Int("bits", 4);
  tensor.rows = {data->shape[0].Constant()};
  tensor.columns = PackedColumns(data->shape[1].Constant(), tensor.bits, node);
  tensor.block_size = a.Int("block_size", 128);
  Value* table = Dequantized(graph, tensor, node);
  graph.ReplaceUses(node.out(0),
                    At(graph, node).Op("Gather", {table, node.in(1)}, {{"axis", int64_t{0}}}));
  return true;
}

// A weight that the file stores as integers.
bool LowerDequantizeLinear(Graph& graph, Node& node) {
  Value* packed = node.in(0);
  for (const Value* input : node.inputs) {
    if (input != nullptr && (input->role != Role::kConstant || input->data == nullptr))
      return false;
  }
  if (packed->data->elements() < 2) return false;
  InferNode(node);  // the reference reads what inference has checked
  std::vector<Array<float>> arrays;
  std::vector<const Array<float>*> inputs;
  arrays.reserve(node.inputs.size());
  for (const Value* input : node.inputs) {
    if (input != nullptr) arrays.push_back(ToArray(*input->data));
    inputs.push_back(input == nullptr ? nullptr : &arrays.back());
  }
  Array<float> values = std::move(Evaluate(*node.schema, node.attributes, inputs, 1)[0]);
  values.dtype = DType::kFloat32;
  graph.ReplaceUses(node.out(0), AddDequantized(graph, *packed, values.dims, ToTensorData(values)));
  return true;
}

}  // namespace

std::string LowerQuantized::doc() const {
  return "MatMulNBits(x, packed, scales, zero_points?, , bias?)  ==>  MatMul(x, Transpose(W)) + "
         "bias?\n"
         "GatherBlockQuantized(packed, ids, scales)  ==>  Gather(W, ids)\n"
         "DequantizeLinear(packed, scale, zero_point)  ==>  W\n"
         "W = (q - zero_point) * scale as a float parameter \"<packed>.dequantized\"";
}

bool LowerQuantized::Run(Graph& graph, PassContext& context) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (node->schema->domain == "com.microsoft" || node->op() == "DequantizeLinear")
      nodes.push_back(node.get());
  }
  for (Node* node : nodes) {
    const bool lowered =
        (node->op() == "DequantizeLinear" && LowerDequantizeLinear(graph, *node)) ||
        (node->op() == "MatMulNBits" && LowerMatMulNBits(graph, *node)) ||
        (node->op() == "GatherBlockQuantized" && LowerGatherBlockQuantized(graph, *node));
    if (lowered) context.Matched(*node);
  }
  if (context.matches > 0) graph.RemoveDeadNodes();
  return context.matches > 0;
}

}  // namespace weir
