#include <gtest/gtest.h>

#include "importer/importer.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

using testing::Test;

// y = RmsNorm(x, gamma) in domain ai.weir, the op every build of weir knows.
ModelBuilder NormModel() {
  ModelBuilder b;
  b.Input("x", {"batch", "4"});
  b.Floats("gamma", {4}, {1, 2, 3, 4});
  b.Op("RmsNorm", {"x", "gamma"}, {"y"}, "ai.weir");
  b.Output("y");
  return b;
}

TEST(ReadOnnx, KeepsNodesNamesAndInitializers) {
  TempFolder folder;
  const auto graph = NormModel().Read(folder / "m.onnx");
  VerifyGraph(*graph);
  ASSERT_EQ(graph->nodes().size(), 1u);
  const Node& node = *graph->nodes().front();
  EXPECT_EQ(node.op(), "RmsNorm");
  EXPECT_EQ(node.source, "RmsNorm 'n_y'");
  EXPECT_EQ(graph->outputs.at(0)->name, "y");
  EXPECT_EQ(graph->inputs.at(0)->name, "x");
  EXPECT_EQ(node.in(1)->role, Role::kConstant);
  EXPECT_EQ(graph->initializers.at("gamma")->AsFloats(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(graph->initializers.at("gamma"), node.in(1)->data);
}

TEST(ReadOnnx, MapsInputDimsToTheLaunch) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("input_ids", {"s26", "s70"}, onnx::TensorProto::INT64);
  b.Input("attention_mask", {"s26", "past_sequence_length + 1"}, onnx::TensorProto::INT64);
  b.Input("mask", {"batch_size", "total_sequence_length"}, onnx::TensorProto::INT64);
  b.Input("past_key_values.0.key", {"s26", "2", "past_sequence_length", "16"});
  b.Input("past_key_values.0.value", {"s26", "2", "s99", "16"});
  b.Input("other", {"s70", "width", "?"});
  const auto graph = b.Read(folder / "m.onnx");
  const auto shape = [&](size_t i) { return ToString(graph->inputs.at(i)->shape); };
  EXPECT_EQ(shape(0), "[batch,sequence]");
  EXPECT_EQ(shape(1), "[batch,sequence]");
  EXPECT_EQ(shape(2), "[batch,sequence]");
  EXPECT_EQ(shape(3), "[batch,2,0,16]");
  EXPECT_EQ(shape(4), "[batch,2,0,16]");
  EXPECT_EQ(shape(5), "[sequence,?,?]");
}

TEST(ReadOnnx, ReportsAllUnknownOpsAtOnce) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Op("Frobnicate", {"x"}, {"a"}, "com.example");
  b.Op("Frobnicate", {"a"}, {"b"}, "com.example");
  b.Op("Wobble", {"b"}, {"c"});
  b.Output("c");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_NE(error.find("UnsupportedOp"), std::string::npos) << error;
  EXPECT_NE(error.find("com.example::Frobnicate: 2 nodes, first Frobnicate 'n_a'"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("Wobble: 1 node, first Wobble 'n_c'"), std::string::npos) << error;
}

}  // namespace
}  // namespace weir
