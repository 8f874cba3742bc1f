#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"

namespace weir {
namespace {

TEST(SpecializeShapes, BindsEveryShape) {
  const auto graph = ParseText(
      "graph (float[batch,sequence,4] x, float[4] g) => (float[batch,sequence,4] y)\n"
      "{ y, rstd = RmsNorm(x, g) }");
  SpecializeShapes(*graph, 3, 17);
  EXPECT_EQ(ToString(graph->inputs[0]->shape), "[3,17,4]");
  EXPECT_EQ(ToString(graph->FindValue("y")->shape), "[3,17,4]");
  EXPECT_EQ(ToString(graph->FindValue("rstd")->shape), "[3,17]");
}

TEST(SpecializeShapes, FoldsShapeArithmetic) {
  const auto graph = ParseText(
      "graph (float[batch,sequence,8] x) => (float[batch,sequence,2,4] y, int64[] tokens)\n"
      "constant int64[] zero = {0}\nconstant int64[] one = {1}\nconstant int64[1] tail = {-1}\n"
      "constant int64[2] heads = {2, 4}\nconstant int64[1] axes = {0}\n"
      "{\n"
      "  shape = Shape(x)\n"
      "  b = Gather<axis = 0>(shape, zero)\n"
      "  s = Gather<axis = 0>(shape, one)\n"
      "  tokens = Mul(b, s)\n"
      "  b1 = Unsqueeze(b, axes)\n"
      "  target = Concat<axis = 0>(b1, tail, heads)\n"
      "  y = Reshape(x, target)\n"
      "}");
  SpecializeShapes(*graph, 3, 17);
  VerifyGraph(*graph);
  ASSERT_EQ(graph->nodes().size(), 1u) << ToText(*graph);
  const Node& reshape = *graph->nodes().front();
  EXPECT_EQ(reshape.op(), "Reshape");
  EXPECT_EQ(reshape.in(1)->role, Role::kConstant);
  EXPECT_EQ(reshape.in(1)->data->AsInts(), (std::vector<int64_t>{3, -1, 2, 4}));
  EXPECT_EQ(ToString(reshape.out()->shape), "[3,17,2,4]");
  EXPECT_EQ(graph->outputs[1]->data->AsInts(), (std::vector<int64_t>{51}));
  EXPECT_TRUE(graph->outputs[1]->data->dims().empty());
}

TEST(SpecializeShapes, RejectsEmptyLaunchesAndUnknownShapes) {
  const auto graph = ParseText(
      "graph (float[batch,?,4] x, float[4] g) => (float[batch,?,4] y)\n{ y = RmsNorm(x, g) }");
  EXPECT_THROW(SpecializeShapes(*graph, 0, 4), Error);
  try {
    SpecializeShapes(*graph, 2, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidShape);
    EXPECT_NE(error.message().find("'x' [2,?,4]"), std::string::npos) << error.what();
    EXPECT_NE(error.message().find("'y' [2,?,4] made by RmsNorm 'y'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weir
