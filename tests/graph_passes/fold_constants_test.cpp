#include "graph_passes/fold_constants.h"

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/merge_common.h"
#include "graph_passes/widen_floats.h"
#include "tests/graph_passes/golden.h"

namespace weir {
namespace {

const char* const kHead = "graph g (int64[batch,sequence] ids) => (float[4] y)\n";

TEST(FoldConstants, EvaluatesSmallConstants) {
  FoldConstants pass;
  ExpectPass(pass,
             std::string(kHead) +
                 "{\n  r = Range(int64[]{0}, int64[]{4}, int64[]{1})\n  f = Cast<to = 1>(r)\n"
                 "  h = Mul(f, float[]{0.5})\n  i = Cast<to = 1>(ids)\n  s = ReduceSum<keepdims = "
                 "0>(i, int64[2]{0, 1})\n  y = Mul(h, s)\n}\n",
             std::string(kHead) +
                 "{\n  i = Cast<to = 1>(ids)\n  s = ReduceSum<keepdims = 0>(i, int64[2]{0, 1})\n"
                 "  y = Mul(float[4]{0, 0.5, 1, 1.5}, s)\n}\n");
}

TEST(FoldConstants, ReadsWhatIsKnownOfLaunchShapes) {
  const std::string head = "graph g (int64[batch,sequence] ids, float[batch,6] x) => (int64[] n)\n";
  FoldConstants pass;
  ExpectPass(pass, head + "{\n  s = Shape(x)\n  n = Gather(s, int64[]{1})\n}\n",
             head + "constant int64[] n = {6}\n{\n}\n");
}

TEST(FoldConstants, NeverReadsWeights) {
  const std::string text =
      std::string(kHead) + "constant float[4] w = {1, 2, 3, 4}\n{\n  y = Mul(w, float[]{2})\n}\n";
  FoldConstants pass;
  ExpectPass(pass, text, text);
}

// The legacy exporter's Expand(x, Where(shape == -1, 1, shape)): launch dims are never -1.
TEST(FoldConstants, LaunchDimsArePositive) {
  const auto graph = ReadGolden(
      "graph g (int64[batch,sequence] ids) => (int64[batch,2,sequence] y)\n{\n  s = Shape(ids)\n"
      "  b = Slice(s, int64[1]{0}, int64[1]{1}, int64[1]{0})\n"
      "  e = Slice(s, int64[1]{1}, int64[1]{2}, int64[1]{0})\n"
      "  t = Concat<axis = 0>(b, int64[1]{-1}, e)\n  q = Equal(t, int64[3]{-1, -1, -1})\n"
      "  w = Where(q, int64[3]{2, 2, 2}, t)\n  u = Unsqueeze(ids, int64[1]{1})\n"
      "  y = Expand(u, w)\n}\n");
  FoldConstants pass;
  PassContext context;
  pass.Run(*graph, context);
  EXPECT_EQ(ToString(graph->FindValue("y")->shape), "[batch,2,sequence]");
}

TEST(FoldConstants, ReportsAllProblemsTogether) {
  const auto graph = ParseText(
      "graph g (float[batch,3] x, float[batch,4] z, float[batch,5] v) => (float[batch,3] y)\n"
      "{\n  a = Neg(x)\n  b = Neg(x)\n  y = Add(a, b)\n}\n");
  for (const char* name : {"a", "b"}) {
    Node* node = graph->FindValue(name)->producer;
    Node* add =
        graph->AddNode(GetOp("Add"), {node->in(0), graph->FindValue(*name == 'a' ? "z" : "v")},
                       {graph->AddValue(std::string(name) + "2")}, {}, node);
    add->source = std::string("Add '") + name + "'";
    graph->SetInput(node, 0, add->out());
  }
  FoldConstants pass;
  PassContext context;
  try {
    pass.Run(*graph, context);
    FAIL() << "mismatched shapes were accepted";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("Add 'a'"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("Add 'b'"), std::string::npos) << error.message();
  }
}

TEST(FoldConstants, AttributeErrorsNameTheNode) {
  auto graph = ReadGolden("graph g (float[batch,4] x) => (float[batch,4] y)\n{\n  y = Softmax<axis = 1>(x)\n}\n");
  Node& node = *graph->nodes().front();
  node.source = "Softmax 'router/softmax'";
  node.attributes.Set("axis", std::string("last"));
  FoldConstants pass;
  PassContext context;
  try {
    pass.Run(*graph, context);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("Softmax 'router/softmax'"), std::string::npos) << error.message();
    EXPECT_NE(error.message().find("attribute 'axis' has the wrong type"), std::string::npos) << error.message();
  }
}

TEST(MergeCommon, WeightsAreNotMergedByValue) {
  const std::string text =
      std::string(kHead) +
      "constant float[4] w = {1, 2, 3, 4}\nconstant float[4] v = {1, 2, 3, 4}\n"
      "{\n  y = Add(w, v)\n}\n";
  MergeCommon pass;
  ExpectPass(pass, text, text);
}

TEST(WidenFloats, EverythingComputesInFloat32) {
  const auto graph = ParseText(
      "graph g (bfloat16[batch,2] x) => (bfloat16[batch,2] y)\nconstant bfloat16[2] w = {1, 0.5}\n"
      "{\n  a = Cast<to = 1>(x)\n  b = Mul(a, float[]{2})\n  c = Cast<to = 16>(b)\n"
      "  y = Mul(c, w)\n}\n");
  graph->initializers["w"] = graph->FindValue("w")->data;
  WidenFloats pass;
  PassContext context;
  EXPECT_TRUE(pass.Run(*graph, context));
  InferGraph(*graph);
  for (const auto& value : graph->values()) EXPECT_EQ(value->dtype, DType::kFloat32) << value->name;
  EXPECT_EQ(graph->FindValue("w")->parameter->initializers[0].dtype, DType::kBFloat16);
}

}  // namespace
}  // namespace weir
