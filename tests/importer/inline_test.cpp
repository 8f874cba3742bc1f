// Local functions and If.
#include <gtest/gtest.h>

#include "importer/importer.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

bool Has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::vector<std::string> Ops(const Graph& graph) {
  std::vector<std::string> ops;
  for (const auto& node : graph.nodes()) ops.push_back(node->op());
  return ops;
}

onnx::FunctionProto& AddFunction(ModelBuilder& b, const std::string& name,
                                 const std::vector<std::string>& inputs,
                                 const std::vector<std::string>& outputs) {
  onnx::FunctionProto& function = *b.model.add_functions();
  function.set_name(name);
  function.set_domain("local");
  for (const auto& input : inputs) function.add_input(input);
  for (const auto& output : outputs) function.add_output(output);
  auto* opset = function.add_opset_import();
  opset->set_version(18);
  return function;
}

TEST(Functions, AreInlinedThroughSeveralLevels) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  auto& inner = AddFunction(b, "Inner", {"a"}, {"r"});
  FillNode(*inner.add_node(), "Neg", {"a"}, {"t"});
  FillNode(*inner.add_node(), "Abs", {"t"}, {"r"});
  auto& outer = AddFunction(b, "Outer", {"a", "b"}, {"r"});
  FillNode(*outer.add_node(), "Inner", {"a"}, {"t"}, "local");
  FillNode(*outer.add_node(), "Add", {"t", "b"}, {"r"});
  b.Op("Outer", {"x", "x"}, {"t"}, "local");
  b.Op("Outer", {"t", "x"}, {"y"}, "local");
  b.Output("y");
  const auto graph = b.Read(folder / "m.onnx");
  VerifyGraph(*graph);
  EXPECT_EQ(Ops(*graph), (std::vector<std::string>{"Neg", "Abs", "Add", "Neg", "Abs", "Add"}));
  EXPECT_EQ(graph->outputs.at(0)->name, "y");
  EXPECT_EQ(graph->nodes().front()->source, "Neg 'n_t/n_t/n_t'");
  EXPECT_EQ(graph->nodes().back()->in(1), graph->inputs[0]);
}

TEST(Functions, AttributesComeFromTheCallOrTheDefaults) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4", "4"});
  auto& function = AddFunction(b, "F", {"a"}, {"r"});
  auto& node = FillNode(*function.add_node(), "Softmax", {"a"}, {"r"});
  auto& reference = *node.add_attribute();
  reference.set_name("axis");
  reference.set_ref_attr_name("direction");
  reference.set_type(onnx::AttributeProto::INT);
  onnx::AttributeProto fallback;
  fallback.set_name("direction");
  fallback.set_type(onnx::AttributeProto::INT);
  fallback.set_i(0);
  SetInt(b.Op("F", {"x"}, {"y"}, "local"), "direction", 1);
  b.Op("F", {"x"}, {"z"}, "local");
  b.Output("y");
  b.Output("z");
  auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->nodes().front()->attributes.Int("axis"), 1);
  EXPECT_FALSE(graph->nodes().back()->attributes.Has("axis"));
  AddUnknownField(function, kFunctionDefaults, fallback.SerializeAsString());
  graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->nodes().front()->attributes.Int("axis"), 1);
  EXPECT_EQ(graph->nodes().back()->attributes.Int("axis"), 0);
}

TEST(Functions, OptionalArgumentsMayBeAbsent) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Floats("high", {}, {1});
  auto& function = AddFunction(b, "F", {"a", "low", "high"}, {"r", "same"});
  FillNode(*function.add_node(), "Clip", {"a", "low", "high"}, {"r"});
  FillNode(*function.add_node(), "Identity", {"a"}, {"same"});
  b.Op("F", {"x", "", "high"}, {"y"}, "local");
  b.Op("F", {"x"}, {"z", ""}, "local");
  b.Output("y");
  b.Output("z");
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->outputs[0]->producer->in(1), nullptr);
  EXPECT_EQ(graph->outputs[0]->producer->in(2)->name, "high");
  EXPECT_EQ(graph->outputs[1]->producer->inputs.size(), 1u);
}

TEST(Functions, OutputsThatAreInputsKeepTheirName) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  auto& function = AddFunction(b, "Same", {"a"}, {"a"});
  (void)function;
  b.Op("Same", {"x"}, {"y"}, "local");
  b.Output("y");
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->outputs.at(0)->name, "y");
  EXPECT_EQ(graph->outputs.at(0)->producer->in(0), graph->inputs.at(0));
}

TEST(Functions, TakePrecedenceOverOpsOfTheSameName) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  auto& function = AddFunction(b, "FastGelu", {"a"}, {"r"});
  function.set_domain("com.microsoft");
  FillNode(*function.add_node(), "Tanh", {"a"}, {"r"});
  b.Op("FastGelu", {"x"}, {"y"}, "com.microsoft");
  b.Output("y");
  EXPECT_EQ(Ops(*b.Read(folder / "m.onnx")), (std::vector<std::string>{"Tanh"}));
}

TEST(Functions, RecursionIsRefused) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  auto& f = AddFunction(b, "F", {"a"}, {"r"});
  FillNode(*f.add_node(), "G", {"a"}, {"r"}, "local");
  auto& g = AddFunction(b, "G", {"a"}, {"r"});
  FillNode(*g.add_node(), "F", {"a"}, {"r"}, "local");
  b.Op("F", {"x"}, {"y"}, "local");
  b.Output("y");
  EXPECT_TRUE(Has(ErrorOf([&] { b.Read(folder / "m.onnx"); }), "calls itself"));
}

TEST(Functions, ExpansionIsBounded) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  for (int level = 0; level < 24; ++level) {  // 2^24 nodes
    auto& f = AddFunction(b, "F" + std::to_string(level), {"a"}, {"r"});
    const std::string callee = level == 0 ? "Neg" : "F" + std::to_string(level - 1);
    const std::string domain = level == 0 ? "" : "local";
    FillNode(*f.add_node(), callee, {"a"}, {"t"}, domain);
    FillNode(*f.add_node(), callee, {"t"}, {"r"}, domain);
  }
  b.Op("F23", {"x"}, {"y"}, "local");
  b.Output("y");
  EXPECT_TRUE(Has(ErrorOf([&] { b.Read(folder / "m.onnx"); }), "expand to more than"));
}

TEST(Functions, BrokenBodiesAndCallsAreReported) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  auto& f = AddFunction(b, "F", {"a"}, {"r"});
  FillNode(*f.add_node(), "Neg", {"x"}, {"r"});  // x is a name of the main graph
  b.Op("F", {"x"}, {"y"}, "local");
  b.Output("y");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_TRUE(Has(error, "function 'F'") && Has(error, "'x'")) << error;
  ModelBuilder many;
  many.Input("x", {"4"});
  AddFunction(many, "F", {"a"}, {"a"});
  many.Op("F", {"x", "x"}, {"y"}, "local");
  EXPECT_TRUE(Has(ErrorOf([&] { many.Read(folder / "m.onnx"); }), "has 2 inputs"));
  AddFunction(many, "F", {"a"}, {"a"});
  EXPECT_TRUE(Has(ErrorOf([&] { many.Read(folder / "m.onnx"); }), "defined twice"));
}

// If(condition): then Abs(x) * scale, else Neg(x); both name their result "r".
void AddIf(ModelBuilder& b, const std::string& condition) {
  auto& node = b.Op("If", {condition}, {"y"});
  for (const bool then : {true, false}) {
    auto& attribute = *node.add_attribute();
    attribute.set_name(then ? "then_branch" : "else_branch");
    attribute.set_type(onnx::AttributeProto::GRAPH);
    onnx::GraphProto& graph = *attribute.mutable_g();
    graph.add_output()->set_name("r");
    if (!then) {
      FillNode(*graph.add_node(), "Neg", {"x"}, {"r"});
      continue;
    }
    auto& scale = *graph.add_initializer();
    scale.set_name("scale");
    scale.set_data_type(onnx::TensorProto::FLOAT);
    scale.set_raw_data(FloatBytes({2}));
    FillNode(*graph.add_node(), "Abs", {"x"}, {"t"});
    FillNode(*graph.add_node(), "Mul", {"t", "scale"}, {"r"});
  }
  b.Output("y");
}

void AddBool(ModelBuilder& b, const std::string& name, bool value) {
  b.Tensor(name, onnx::TensorProto::BOOL, {}).add_int32_data(value);
}

TEST(If, ConstantConditionsTakeTheirBranch) {
  TempFolder folder;
  for (const bool taken : {true, false}) {
    ModelBuilder b;
    b.Input("x", {"4"});
    AddBool(b, "c", taken);
    AddIf(b, "c");
    const auto graph = b.Read(folder / "m.onnx");
    VerifyGraph(*graph);
    EXPECT_EQ(Ops(*graph),
              taken ? (std::vector<std::string>{"Abs", "Mul"}) : (std::vector<std::string>{"Neg"}));
    EXPECT_EQ(graph->outputs.at(0)->name, "y");
    EXPECT_EQ(graph->initializers.contains("scale"), taken);
    ASSERT_EQ(graph->stripped.size(), 1u);
    EXPECT_TRUE(Has(graph->stripped[0], taken ? "then_branch" : "else_branch"));
  }
}

TEST(If, UseCacheBranchIsFalse) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Input("use_cache_branch", {"1"}, onnx::TensorProto::BOOL);
  AddIf(b, "use_cache_branch");
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(Ops(*graph), (std::vector<std::string>{"Neg"}));
  EXPECT_EQ(graph->inputs.size(), 1u);
  ModelBuilder negated;
  negated.Input("x", {"4"});
  negated.Input("use_cache_branch", {"1"}, onnx::TensorProto::BOOL);
  negated.Op("Not", {"use_cache_branch"}, {"c"});
  AddIf(negated, "c");
  EXPECT_EQ(negated.Read(folder / "m.onnx")->outputs.at(0)->producer->op(), "Mul");
}

// Older exporters squeeze "if the axis has length 1".
TEST(If, ConditionsOnConstantDimsAreDecided) {
  TempFolder folder;
  ModelBuilder b(11);
  b.Input("x", {"batch", "1"});
  b.Ints("axis", {}, {1});
  b.Ints("one", {}, {1});
  b.Op("Shape", {"x"}, {"shape"});
  b.Op("Gather", {"shape", "axis"}, {"length"});
  b.Op("Equal", {"length", "one"}, {"c"});
  AddIf(b, "c");
  EXPECT_EQ(b.Read(folder / "m.onnx")->outputs.at(0)->producer->op(), "Mul");
}

TEST(If, ConditionsOnValuesAreUnsupported) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Input("c", {}, onnx::TensorProto::BOOL);
  AddIf(b, "c");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_TRUE(Has(error, "UnsupportedOp") && Has(error, "If 'n_y'; only conditions known"))
      << error;
}

TEST(If, BranchesMustGiveWhatTheNodeGives) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  AddBool(b, "c", true);
  AddIf(b, "c");
  b.graph().mutable_node(0)->add_output("z");
  EXPECT_TRUE(Has(ErrorOf([&] { b.Read(folder / "m.onnx"); }), "has 2 outputs"));
}

TEST(Loop, IsUnsupported) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  auto& node = b.Op("Loop", {"", "", "x"}, {"y"});
  auto& attribute = *node.add_attribute();
  attribute.set_name("body");
  attribute.set_type(onnx::AttributeProto::GRAPH);
  attribute.mutable_g()->set_name("body");
  b.Output("y");
  EXPECT_TRUE(Has(ErrorOf([&] { b.Read(folder / "m.onnx"); }), "Loop: 1 node"));
}

}  // namespace
}  // namespace weir
