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
