#include "graph_passes/build_gradient.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/text.h"
#include "graph_passes/pipeline.h"

namespace weir {
namespace {

std::unique_ptr<Graph> Training(const std::string& text, const TrainingOptions& options = {}) {
  auto graph = ParseText(text);
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  return graph;
}

TEST(BuildGradient, FrozenTensorsGetNoGradient) {
  const auto graph = Training(
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] logits)\n"
      "constant float[2,2] table = {1, 2, 3, 4}\nparameter float[2,2] w\n"
      "{ h = Embedding(input_ids, table) logits = Linear(h, w) }");
  EXPECT_EQ(graph->ValuesWithRole(Role::kGradient).size(), 1u);
  for (const auto& node : graph->nodes()) {
    EXPECT_NE(node->op(), "EmbeddingGradient");
    EXPECT_NE(node->op(), "MatMul");  // h needs none either
  }
}

TEST(BuildGradient, ReportsEveryOpWithoutGradientOnThePath) {
  static const OpSchema opaque{
      .name = "Opaque", .domain = "test", .doc = "", .min_inputs = 1, .max_inputs = 1,
      .infer = [](InferContext& c) { c.SetOutput(0, c.in(0)->dtype, c.shape(0)); }};
  const auto graph = ParseText(
      "graph (float[2,3,4] x) => (float[2,3,4] logits)\nparameter float[4] g\nparameter float[4] late\n"
      "{ frozen = Abs(x) a = RmsNorm(frozen, g) b = RmsNorm(a, late) logits = RmsNorm(b, late) }");
  const auto wrap = [&](const char* name, const char* source) {
    Value* value = graph->FindValue(name);
    Value* wrapped = graph->AddValue(std::string(name) + "_opaque");
    Node* user = value->uses[0].node;
    Node* node = graph->AddNode(opaque, {value}, {wrapped}, {}, user);
    graph->SetInput(user, 0, wrapped);
    node->source = source;
    InferNode(*node);
  };
  wrap("x", "Opaque '/frozen'");
  wrap("a", "Opaque '/first'");
  wrap("b", "Opaque '/second'");
  PassManager passes;
  try {
    BuildTrainingGraph(*graph, {}, passes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupportedOp);
    const std::string text = error.what();
    EXPECT_NE(text.find("Opaque, from Opaque '/first', on the gradient path from parameter 'g'"), std::string::npos) << text;
    EXPECT_NE(text.find("Opaque '/second'"), std::string::npos) << text;
    EXPECT_EQ(text.find("/frozen"), std::string::npos) << text;
  }
}

TEST(BuildGradient, NamesOfTheModelMakeWayForTheInterface) {
  const auto graph = Training(
      "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] step)\nparameter float[2,2] labels\n"
      "{ step = Embedding(input_ids, labels) }");
  EXPECT_EQ(graph->FindValue("labels")->role, Role::kInput);
  EXPECT_EQ(graph->FindValue("step")->role, Role::kInput);
  EXPECT_EQ(graph->FindValue("labels.model")->role, Role::kParameter);
}

TEST(AddLoss, RefusesGraphsWithoutOneFloatOutput) {
  EXPECT_THROW(Training("graph (int64[batch,sequence] input_ids) => (int64[batch,sequence] input_ids)\n{}"), Error);
  EXPECT_THROW(Training("graph (float[2,2] x) => (float[2,2] x, float[2,2] x)\n{}"), Error);
}

constexpr const char* kKinds =
    "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] logits)\n"
    "parameter float[2,2] embed\nparameter float[2] gamma\nparameter float[2,2] w\nparameter float[2] bias\n"
    "{ h = Embedding(input_ids, embed) n = RmsNorm(h, gamma) logits = Linear(n, w, bias) }";

std::string Decayed(const std::string& rule, const char* model = kKinds) {
  auto graph = ParseText(model);
  if (Value* bias = graph->FindValue("bias")) bias->parameter->original_rank = 2;  // say, [1, 2] in the framework
  TrainingOptions options;
  options.decay = rule;
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  std::string names;
  for (const auto& node : graph->nodes()) {
    if (node->op() == "AdamW" && node->attributes.Float("weight_decay", -1) > 0) names += node->in(0)->name + " ";
  }
  return names;
}

TEST(AddOptimizer, DecaysByTheRule) {
  EXPECT_EQ(Decayed("matrices"), "embed w ");
  EXPECT_EQ(Decayed("matrices",
                    "graph (int64[batch,sequence] input_ids) => (float[batch,sequence,2] logits)\n"
                    "parameter float[2,2] embed\nparameter float[2] divisor\n"
                    "{ h = Embedding(input_ids, embed) logits = Div(h, divisor) }"),
            "embed ")
      << "a vector is none, whatever reads it";
  EXPECT_EQ(Decayed("dims"), "embed w bias ");
  EXPECT_EQ(Decayed("all"), "embed gamma w bias ");
  EXPECT_THROW(Decayed("none"), Error);
}

TEST(AddOptimizer, RefusesModelsWithoutParameters) {
  EXPECT_THROW(Training("graph (float[2,3,2] x) => (float[2,3,2] y)\n{ y = Abs(x) }"), Error);
}

}  // namespace
}  // namespace weir
