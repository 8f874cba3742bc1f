#include "graph_passes/lower_precision.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "backend/plan.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/pipeline.h"
#include "importer/importer.h"
#include "tests/graph_passes/golden.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

std::unique_ptr<Graph> ReadModel(const std::string& family) {
  return ReadOnnx(std::string(WEIR_SOURCE_DIR "/models/") + family + "/dynamo23_batched_mm_eager.onnx");
}

constexpr const char* kBefore =
    R"(graph tiny (int64[2,3] input_ids, float[6,4] dy) => (float[6,4] out)
parameter float[5,4] w
parameter float[4] g
parameter float[3,4] gate
parameter float[3,8,4] up
parameter float[3,4,4] down
gradient float[4] g.grad
constant int64[1] one = {1}
constant int64[2] flat = {6, 4}
{
  h = Embedding(input_ids, w)
  n, r = RmsNorm(h, g)
  x = Reshape(n, flat)
  logits = Linear(x, gate)
  scores = Sigmoid(logits)
  weights, ids = TopK<axis = 1>(scores, one)
  y = Experts(x, ids, weights, up, down)
  out = Add(x, y)
  phase backward
  dn = Mul(dy, out)
  dx, g2 = RmsNormGradient(h, g, r, dn, g.grad)
}
)";

TEST(LowerPrecision, ComputesInBFloat16AndRoutesInFloat32) {
  const auto graph = ParseText(kBefore);
  PassContext context;
  EXPECT_TRUE(LowerPrecision().Run(*graph, context));
  VerifyGraph(*graph);
  InferGraph(*graph);
  EXPECT_EQ(context.matches, 5);
  EXPECT_EQ(ToText(*graph), R"(graph tiny (int64[2,3] input_ids, float[6,4] dy) => (float[6,4] out.f32)
parameter float[5,4] w
parameter float[4] g
parameter float[3,4] gate
parameter float[3,8,4] up
parameter float[3,4,4] down
gradient float[4] g.grad
constant int64[1] one = {1}
constant int64[2] flat = {6, 4}
{
  phase begin
  w.bf16 = Cast<to = 16>(w)
  gate.bf16 = Cast<to = 16>(gate)
  up.bf16 = Cast<to = 16>(up)
  down.bf16 = Cast<to = 16>(down)
  phase forward
  h = Embedding(input_ids, w.bf16)
  n, r = RmsNorm(h, g)
  x = Reshape(n, flat)
  logits = Linear(x, gate.bf16)
  logits.f32 = Cast<to = 1>(logits)
  scores = Sigmoid(logits.f32)
  weights, ids = TopK<axis = 1>(scores, one)
  y = Experts(x, ids, weights, up.bf16, down.bf16)
  out = Add(x, y)
  phase backward
  dy.bf16 = Cast<to = 16>(dy)
  dn = Mul(dy.bf16, out)
  dx, g2 = RmsNormGradient(h, g, r, dn, g.grad)
  phase forward
  out.f32 = Cast<to = 1>(out)
}
)");
  const std::map<std::string, DType> expected = {
      {"h", DType::kBFloat16},      {"n", DType::kBFloat16},   {"r", DType::kFloat32},  {"logits", DType::kBFloat16},
      {"scores", DType::kFloat32},  {"weights", DType::kFloat32}, {"y", DType::kBFloat16}, {"dx", DType::kBFloat16},
      {"g2", DType::kFloat32}};
  for (const auto& [name, dtype] : expected) EXPECT_EQ(graph->FindValue(name)->dtype, dtype) << name;
}

TEST(LowerPrecision, LeavesAGraphWithoutFloatsAlone) {
  const auto graph = ParseText("graph ints (int64[2] a) => (int64[2] b)\n{\n  b = Add(a, a)\n}\n");
  const std::string before = ToText(*graph);
  PassContext context;
  EXPECT_FALSE(LowerPrecision().Run(*graph, context));
  EXPECT_EQ(ToText(*graph), before);
}

TEST(LowerPrecision, TheCpuSaysThatItDoesNotComputeInBFloat16) {
  const auto graph = ParseText(kBefore);
  PassContext context;
  LowerPrecision().Run(*graph, context);
  try {
    MakePlan(*graph, DeviceKind::kCpu);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupportedOp);
    EXPECT_NE(std::string(error.what()).find("bfloat16 compute runs with --device cuda only"), std::string::npos)
        << error.what();
  }
}

class LoweredModel : public testing::TestWithParam<const char*> {};

// A whole training graph: accumulators and moments stay, masters too unless they are split, products get bfloat16, shapes bind.
// OPT-16, OPT-20, VCE-10: whatever computes in bfloat16, masters (or both halves of them), moments and accumulators are float32.
TEST_P(LoweredModel, KeepsMastersAndLowersEveryProduct) {
  TrainingOptions options;
  options.precision = "bfloat16";
  options.strip = 256;
  PassManager passes;
  const auto graph = ReadModel(GetParam());
  Canonicalize(*graph, {}, passes);
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, 2, 32);
  VerifyGraph(*graph);
  for (const auto& value : graph->values()) {
    const bool split = value->role == Role::kParameter && graph->FindValue(value->name + ".low") != nullptr;
    if (value->role == Role::kParameter || value->role == Role::kGradient) {
      EXPECT_EQ(value->dtype, split ? DType::kBFloat16 : DType::kFloat32) << value->name;
    } else if (value->role == Role::kOptimizerState) {
      EXPECT_EQ(value->dtype, value->name.ends_with(".low") ? DType::kUInt16 : DType::kFloat32) << value->name;
    }
  }
  int products = 0;
  for (const auto& node : graph->nodes()) {
    if (node->op() != "Linear" && node->op() != "Experts" && node->op() != "LinearWeightGradient") continue;
    ++products;
    EXPECT_EQ(node->in(0)->dtype, DType::kBFloat16) << node->source;
    EXPECT_EQ(node->out()->dtype, node->op() == "LinearWeightGradient" ? DType::kFloat32 : DType::kBFloat16);
    if (node->op() == "Experts") {
      EXPECT_EQ(node->in(2)->dtype, DType::kFloat32) << node->source;
    }
  }
  EXPECT_GT(products, 10);
}

INSTANTIATE_TEST_SUITE_P(Families, LoweredModel,
                         testing::Values("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3"));

}  // namespace
}  // namespace weir
