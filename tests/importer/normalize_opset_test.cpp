#include <gtest/gtest.h>

#include "graph/op_schema.h"
#include "importer/importer.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

// Reads a model of one node over x [2,3,4] at `opset` and gives back the graph.
template <class Fill>
std::unique_ptr<Graph> ReadOne(int64_t opset, const std::string& op, Fill fill, int outputs = 1,
                               std::vector<std::string> dims = {"2", "3", "4"}) {
  TempFolder folder;
  ModelBuilder b(opset);
  b.Input("x", dims);
  std::vector<std::string> names = {"y", "y1", "y2"};
  names.resize(static_cast<size_t>(outputs));
  fill(b.Op(op, {"x"}, names));
  for (const auto& name : names) b.Output(name);
  auto graph = b.Read(folder / "m.onnx");
  VerifyGraph(*graph);
  return graph;
}

const Node& First(const Graph& graph) { return *graph.nodes().front(); }
std::vector<int64_t> InputInts(const Node& node, size_t slot) {
  return node.in(slot)->data->AsInts();
}
using Node_ = onnx::NodeProto;

TEST(NormalizeOpset, AxesBecomeAnInput) {
  for (const char* op : {"Squeeze", "Unsqueeze", "ReduceSum", "ReduceMean", "ReduceMax"}) {
    const auto graph = ReadOne(11, op, [](Node_& n) { SetInts(n, "axes", {1, 2}); });
    EXPECT_EQ(InputInts(First(*graph), 1), (std::vector<int64_t>{1, 2})) << op;
    EXPECT_FALSE(First(*graph).attributes.Has("axes")) << op;
  }
  // All reductions but ReduceSum took their axes as an attribute up to opset 17.
  for (const char* op : {"ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"}) {
    const auto graph = ReadOne(17, op, [](Node_& n) { SetInts(n, "axes", {-1}); });
    ASSERT_EQ(First(*graph).inputs.size(), 2u) << op;
    EXPECT_EQ(InputInts(First(*graph), 1), (std::vector<int64_t>{-1})) << op;
  }
}

TEST(NormalizeOpset, SliceBoundsBecomeInputs) {
  const auto graph = ReadOne(9, "Slice", [](Node_& n) {
    SetInts(n, "starts", {1});
    SetInts(n, "ends", {3});
    SetInts(n, "axes", {2});
  });
  EXPECT_EQ(InputInts(First(*graph), 1), (std::vector<int64_t>{1}));
  EXPECT_EQ(InputInts(First(*graph), 2), (std::vector<int64_t>{3}));
  EXPECT_EQ(InputInts(First(*graph), 3), (std::vector<int64_t>{2}));
  InferGraph(*graph);
  EXPECT_EQ(ToString(graph->outputs[0]->shape), "[2,3,2]");
}

TEST(NormalizeOpset, ClipBoundsBecomeInputsOfTheSameDtype) {
  const auto graph = ReadOne(10, "Clip", [](Node_& n) { SetFloat(n, "max", 6); });
  EXPECT_EQ(First(*graph).in(1), nullptr);
  EXPECT_EQ(First(*graph).in(2)->data->AsFloats(), (std::vector<float>{6}));
  EXPECT_TRUE(First(*graph).in(2)->data->dims().empty());
  TempFolder folder;
  ModelBuilder half(10);
  half.Input("x", {"2"}, onnx::TensorProto::FLOAT16);
  SetFloat(half.Op("Clip", {"x"}, {"y"}), "min", 0.5f);
  half.Output("y");
  const auto read = half.Read(folder / "m.onnx");
  EXPECT_EQ(First(*read).in(1)->dtype, DType::kFloat16);
  EXPECT_EQ(First(*read).in(1)->data->AsFloats(), (std::vector<float>{0.5f}));
}

TEST(NormalizeOpset, PadTopKAndDropoutAttributesBecomeInputs) {
  if (FindOp("Pad") != nullptr) {
    const auto pad = ReadOne(10, "Pad", [](Node_& n) {
      SetInts(n, "pads", {0, 0, 1, 0, 0, 1});
      SetFloat(n, "value", 2);
    });
    EXPECT_EQ(InputInts(First(*pad), 1), (std::vector<int64_t>{0, 0, 1, 0, 0, 1}));
    EXPECT_EQ(First(*pad).in(2)->data->AsFloats(), (std::vector<float>{2}));
  }
  const auto top = ReadOne(
      9, "TopK", [](Node_& n) { SetInt(n, "k", 2); }, 2);
  EXPECT_EQ(InputInts(First(*top), 1), (std::vector<int64_t>{2}));
  if (FindOp("Dropout") != nullptr) {
    const auto dropout = ReadOne(10, "Dropout", [](Node_& n) { SetFloat(n, "ratio", 0.25f); });
    EXPECT_EQ(First(*dropout).in(1)->data->AsFloats(), (std::vector<float>{0.25f}));
  }
}

TEST(NormalizeOpset, SplitSaysItsPieces) {
  const auto sized = ReadOne(
      11, "Split",
      [](Node_& n) {
        SetInts(n, "split", {1, 2});
        SetInt(n, "axis", 1);
      },
      2);
  EXPECT_EQ(InputInts(First(*sized), 1), (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(First(*sized).attributes.Has("num_outputs"));
  const auto equal = ReadOne(
      13, "Split", [](Node_& n) { SetInt(n, "axis", 1); }, 3);
  EXPECT_EQ(First(*equal).attributes.Int("num_outputs"), 3);
}

TEST(NormalizeOpset, OldSoftmaxOverTheLastAxisIsTheNewOne) {
  for (const int64_t axis : {-1, 2}) {
    const auto graph = ReadOne(11, "Softmax", [&](Node_& n) { SetInt(n, "axis", axis); });
    EXPECT_EQ(graph->nodes().size(), 1u);
    EXPECT_EQ(First(*graph).attributes.Int("axis"), -1);
  }
}

TEST(NormalizeOpset, OldSoftmaxOverSeveralAxesIsFlattened) {
  const auto graph = ReadOne(11, "Softmax", [](Node_&) {});  // the default axis was 1
  std::vector<std::string> ops;
  for (const auto& node : graph->nodes()) ops.push_back(node->op());
  EXPECT_EQ(ops, (std::vector<std::string>{"Flatten", "Softmax", "Shape", "Reshape"}));
  InferGraph(*graph);
  EXPECT_EQ(ToString(graph->outputs[0]->shape), "[2,3,4]");
  EXPECT_EQ(ToString(First(*graph).out()->shape), "[2,12]");
  EXPECT_EQ(graph->outputs[0]->name, "y");
}

TEST(NormalizeOpset, RanksAreInferredThroughOldModels) {
  TempFolder folder;
  ModelBuilder b(11);
  b.Input("x", {"batch", "sequence", "4"});
  b.Op("Neg", {"x"}, {"a"});
  SetInt(b.Op("Softmax", {"a"}, {"y"}), "axis", 2);
  b.Output("y");
  EXPECT_EQ(b.Read(folder / "m.onnx")->nodes().size(), 2u);
}

TEST(NormalizeOpset, NewFormsStayAsTheyAre) {
  const auto softmax = ReadOne(13, "Softmax", [](Node_& n) { SetInt(n, "axis", 1); });
  EXPECT_EQ(softmax->nodes().size(), 1u);
  EXPECT_EQ(First(*softmax).attributes.Int("axis"), 1);
}

}  // namespace
}  // namespace weir
