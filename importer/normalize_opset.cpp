#include <array>

#include "graph/error.h"
#include "importer/model_reader.h"

namespace weir {
namespace {

void SetInput(NodeForm& node, size_t slot, Value* value) {
  if (node.inputs.size() <= slot) node.inputs.resize(slot + 1, nullptr);
  if (node.inputs[slot] == nullptr) node.inputs[slot] = value;
}

// An integer (list) attribute becomes the int64 [n] input `slot`.
void MoveInts(NodeForm& node, Graph& graph, const char* name, size_t slot) {
  const Attribute* attribute = node.attributes.Find(name);
  if (attribute == nullptr) return;
  const auto* one = std::get_if<int64_t>(attribute);
  const std::vector<int64_t> values = one ? std::vector{*one} : node.attributes.Ints(name);
  const Dims dims = {static_cast<int64_t>(values.size())};
  SetInput(node, slot,
           graph.AddConstant(node.stem + "." + name, TensorData::FromInts(dims, values)));
  node.attributes.Erase(name);
}

// A float attribute becomes a scalar input of the dtype of input 0 (float when that is not known).
void MoveFloat(NodeForm& node, Graph& graph, const char* name, size_t slot) {
  if (!node.attributes.Has(name)) return;
  const auto value = static_cast<float>(node.attributes.Float(name, 0));
  DType dtype = DType::kFloat32;
  if (!node.inputs.empty() && node.inputs[0] != nullptr && IsFloat(node.inputs[0]->dtype)) {
    dtype = node.inputs[0]->dtype;
  }
  SetInput(
      node, slot,
      graph.AddConstant(node.stem + "." + name,
                        TensorData::Owned(dtype, {}, EncodeFloats(std::span(&value, 1), dtype))));
  node.attributes.Erase(name);
}

void MoveAxes(NodeForm& node, Graph& graph) { MoveInts(node, graph, "axes", 1); }

void MoveSlice(NodeForm& node, Graph& graph) {
  MoveInts(node, graph, "starts", 1);
  MoveInts(node, graph, "ends", 2);
  MoveInts(node, graph, "axes", 3);
}

void MoveClip(NodeForm& node, Graph& graph) {
  MoveFloat(node, graph, "min", 1);
  MoveFloat(node, graph, "max", 2);
}

void MovePad(NodeForm& node, Graph& graph) {
  MoveInts(node, graph, "pads", 1);
  MoveFloat(node, graph, "value", 2);
}

void MoveTopK(NodeForm& node, Graph& graph) { MoveInts(node, graph, "k", 1); }
void MoveRatio(NodeForm& node, Graph& graph) { MoveFloat(node, graph, "ratio", 1); }
void MoveSplit(NodeForm& node, Graph& graph) { MoveInts(node, graph, "split", 1); }

// Before opset 18 a Split without sizes meant as many equal pieces as it has outputs.
void CountPieces(NodeForm& node, Graph&) {
  const bool sized = node.inputs.size() > 1 && node.inputs[1] != nullptr;
  if (!sized && !node.attributes.Has("num_outputs")) {
    node.attributes.Set("num_outputs", int64_t{node.outputs});
  }
}

// Before opset 13 the input counted as a matrix [dims before axis, dims from axis on], one row a
// distribution. Over the last axis that is what it means today.
void UnflattenSoftmax(NodeForm& node, Graph&) {
  WEIR_CHECK(!node.inputs.empty() && node.inputs[0] != nullptr && node.outputs == 1,
             ErrorCode::kInvalidModel, "expected one input and one output");
  const int64_t axis = node.attributes.Int("axis", 1);
  const bool last = axis == -1 || (node.rank && axis == static_cast<int64_t>(*node.rank) - 1);
  node.attributes.Set("axis", last ? int64_t{-1} : axis);
  node.flattened = !last;
}

void RenameScatter(NodeForm& node, Graph&) { node.op = "ScatterElements"; }

// `rewrite` applies to `op` in opsets before `until`.
struct Rule {
  const char* op;
  int64_t until;
  void (*rewrite)(NodeForm&, Graph&);
};
constexpr std::array kRules = {
    Rule{"Squeeze", 13, MoveAxes},
    Rule{"Unsqueeze", 13, MoveAxes},
    Rule{"ReduceSum", 13, MoveAxes},
    Rule{"ReduceMean", 18, MoveAxes},
    Rule{"ReduceMax", 18, MoveAxes},
    Rule{"ReduceMin", 18, MoveAxes},
    Rule{"ReduceProd", 18, MoveAxes},
    Rule{"ReduceL2", 18, MoveAxes},
    Rule{"ReduceLogSumExp", 18, MoveAxes},
    Rule{"ReduceSumSquare", 18, MoveAxes},
    Rule{"Slice", 10, MoveSlice},
    Rule{"Clip", 11, MoveClip},
    Rule{"Pad", 11, MovePad},
    Rule{"TopK", 10, MoveTopK},
    Rule{"Dropout", 12, MoveRatio},
    Rule{"Split", 13, MoveSplit},
    Rule{"Split", 18, CountPieces},
    Rule{"Softmax", 13, UnflattenSoftmax},
    Rule{"LogSoftmax", 13, UnflattenSoftmax},
    Rule{"Scatter", 1000, RenameScatter},
};

}  // namespace

void NormalizeOpset(NodeForm& node, Graph& graph) {
  for (const Rule& rule : kRules) {
    if (node.op == rule.op && node.opset < rule.until) rule.rewrite(node, graph);
  }
}

}  // namespace weir
