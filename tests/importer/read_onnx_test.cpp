#include <gtest/gtest.h>

#include "importer/importer.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

bool Has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

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

TEST(ReadOnnx, RefusesWhatIsNoModel) {
  TempFolder folder;
  const auto read = [&](const std::string& bytes) {
    WriteFile(folder / "m.onnx", bytes);
    return ErrorOf([&] { ReadOnnx(folder / "m.onnx"); });
  };
  const std::string good = NormModel().model.SerializeAsString();
  EXPECT_EQ(read(good), "");
  EXPECT_TRUE(Has(read(""), "is empty"));
  EXPECT_TRUE(Has(read("hello"), "not an ONNX model"));
  EXPECT_TRUE(Has(read(good.substr(0, good.size() - 5)), "truncated"));
  EXPECT_TRUE(Has(ErrorOf([&] { ReadOnnx(folder / "none.onnx"); }), "none.onnx"));
  EXPECT_NE(ErrorOf([&] { ReadOnnx(folder.path()); }), "");
}

TEST(ReadOnnx, ReportsAllBrokenNamesAtOnce) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Op("Add", {"x", "ghost"}, {"a"});
  b.Op("Neg", {"phantom"}, {"b"});
  b.Op("Neg", {"x"}, {"a"});
  b.Op("Neg", {"x"}, {"x"});
  b.Output("nowhere");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  for (const char* part : {"5 broken names", "'ghost', used by Add 'n_a'", "'phantom'",
                           "'a' is made twice", "'x' of Neg 'n_x'", "output 'nowhere'"}) {
    EXPECT_TRUE(Has(error, part)) << part << "\n" << error;
  }
}

TEST(ReadOnnx, RefusesCyclesNamingANode) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Op("Add", {"x", "c"}, {"b"});
  b.Op("Neg", {"b"}, {"c"});
  b.Op("Neg", {"c"}, {"y"});
  b.Output("y");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_TRUE(Has(error, "cycle through Add 'n_b'") || Has(error, "cycle through Neg 'n_c'"))
      << error;
}

TEST(ReadOnnx, SortsNodesThatComeTooEarly) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Op("Neg", {"a"}, {"y"});
  b.Op("Abs", {"x"}, {"a"});
  b.Output("y");
  const auto graph = b.Read(folder / "m.onnx");
  VerifyGraph(*graph);
  EXPECT_EQ(graph->nodes().front()->op(), "Abs");
}

TEST(ReadOnnx, RefusesInitializersGivenTwice) {
  TempFolder folder;
  ModelBuilder b;
  b.Floats("w", {1}, {1});
  b.Floats("w", {1}, {2});
  EXPECT_TRUE(Has(ErrorOf([&] { b.Read(folder / "m.onnx"); }), "'w'"));
}

// A bad initializer hides neither the next one, nor nodes, nor operators that no build knows; what
// merely follows from it is not told.
TEST(ReadOnnx, ReportsProblemsOfEveryKindAtOnce) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Input("untyped", {"4"}, onnx::TensorProto::STRING);
  b.Floats("short", {3}, {1, 2});
  b.Tensor("text", onnx::TensorProto::STRING, {1});
  b.Op("SplitToSequence", {"x", "text"}, {"pieces"});
  b.Op("SequenceAt", {"pieces", "text"}, {"piece"});
  b.Op("Mul", {"x"}, {"half"});
  b.Op("Frobnicate", {"half"}, {"y"}, "com.example");
  b.Output("y");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_TRUE(Has(error, "the model has 5 problems")) << error;
  for (const char* part : {"input 'untyped'", "initializer 'short'", "initializer 'text'",
                           "Mul Mul 'n_half': 1 inputs, expected 2", "com.example::Frobnicate"}) {
    EXPECT_TRUE(Has(error, part)) << part << "\n" << error;
  }
}

TEST(ReadOnnx, TellsTheFirstOfVeryManyProblems) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  for (int i = 0; i < 50; ++i) b.Floats("w" + std::to_string(i), {3}, {1});
  b.Op("Neg", {"x"}, {"y"});
  b.Output("y");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_TRUE(Has(error, "50 problems") && Has(error, "'w19'") && Has(error, "and 30 more")) << error;
  EXPECT_FALSE(Has(error, "'w20'")) << error;
}

TEST(ReadOnnx, RefusesNodesWithoutTheirRequiredInputs) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  b.Op("DequantizeLinear", {"", "x"}, {"y"});
  b.Output("y");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_TRUE(Has(error, "DequantizeLinear 'n_y': required input 0 is missing")) << error;
}

TEST(ReadOnnx, InputsThatAreInitializersAreConstants) {
  TempFolder folder;
  ModelBuilder b = NormModel();
  b.Input("gamma", {"4"});
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->inputs.size(), 1u);
  EXPECT_EQ(graph->FindValue("gamma")->role, Role::kConstant);
}

TEST(ReadOnnx, RefusesInputsThatAreNoPlainTensors) {
  TempFolder folder;
  ModelBuilder strings;
  strings.Input("x", {"4"}, onnx::TensorProto::STRING);
  EXPECT_TRUE(Has(ErrorOf([&] { strings.Read(folder / "m.onnx"); }), "'x'"));
  ModelBuilder sequence;
  sequence.graph().add_input()->set_name("x");
  EXPECT_TRUE(Has(ErrorOf([&] { sequence.Read(folder / "m.onnx"); }), "'x'"));
  ModelBuilder negative;
  negative.Input("x", {"-4"});
  EXPECT_TRUE(Has(ErrorOf([&] { negative.Read(folder / "m.onnx"); }), "'x'"));
}

// IMP-19
TEST(ReadOnnx, AbsentOptionalInputsKeepTheirPlaces) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4", "8"});
  b.Input("r", {"4", "2"});
  b.Floats("w1", {2, 8, 8}, std::vector<float>(128));
  b.Floats("w2", {2, 8, 8}, std::vector<float>(128));
  b.Op("MoE", {"x", "r", "w1", "", "w2", "", ""}, {"y"}, "com.microsoft");
  b.Output("y");
  const auto graph = b.Read(folder / "m.onnx");
  const Node& node = *graph->nodes().front();
  ASSERT_EQ(node.inputs.size(), 5u);
  EXPECT_EQ(node.in(3), nullptr);
  EXPECT_EQ(node.in(4)->name, "w2");
}

// IMP-20: com.microsoft MoE has one routing input; a node that wants scores of its own for the selection is not approximated.
TEST(ReadOnnx, AMoeNodeWithASelectionBiasIsRefused) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4", "8"});
  b.Input("r", {"4", "2"});
  b.Floats("w1", {2, 8, 8}, std::vector<float>(128));
  b.Floats("w2", {2, 8, 8}, std::vector<float>(128));
  b.Floats("selection_bias", {2}, {0.5f, 0});
  b.Op("MoE", {"x", "r", "w1", "", "w2", "", "", "", "selection_bias"}, {"y"}, "com.microsoft");
  b.Output("y");
  const std::string error = ErrorOf([&] { b.Read(folder / "m.onnx"); });
  EXPECT_TRUE(Has(error, "MoE 'n_y': 9 inputs, expected")) << error;
}

TEST(ReadOnnx, ConstantNodesBecomeConstants) {
  TempFolder folder;
  ModelBuilder b;
  SetInt(b.Op("Constant", {}, {"i"}), "value_int", 7);
  SetInts(b.Op("Constant", {}, {"is"}), "value_ints", {1, 2});
  SetFloat(b.Op("Constant", {}, {"f"}), "value_float", 0.5f);
  SetTensor(b.Op("Constant", {}, {"t"}), "value", onnx::TensorProto::FLOAT, {2})
      .set_raw_data(FloatBytes({1, 2}));
  for (const char* name : {"i", "is", "f", "t"}) b.Output(name);
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_TRUE(graph->nodes().empty());
  EXPECT_EQ(graph->outputs[0]->data->AsInts(), (std::vector<int64_t>{7}));
  EXPECT_TRUE(graph->outputs[0]->data->dims().empty());
  EXPECT_EQ(graph->outputs[1]->data->AsInts(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(graph->outputs[2]->data->AsFloats(), (std::vector<float>{0.5f}));
  EXPECT_EQ(graph->initializers.at("t")->AsFloats(), (std::vector<float>{1, 2}));
}

TEST(ReadOnnx, RefusesOpsetsThatBroadcastByAttribute) {
  TempFolder folder;
  ModelBuilder b(6);
  b.Input("x", {"4"});
  b.Op("Neg", {"x"}, {"y"});
  EXPECT_TRUE(Has(ErrorOf([&] { b.Read(folder / "m.onnx"); }), "opset 6"));
}

TEST(ReadOnnx, RefusesAttributesGivenTwice) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"4"});
  auto& node = b.Op("Softmax", {"x"}, {"y"});
  SetInt(node, "axis", 0);
  SetInt(node, "axis", -1);
  EXPECT_TRUE(Has(ErrorOf([&] { b.Read(folder / "m.onnx"); }), "'axis' is given twice"));
}

TEST(ReadOnnx, SplitSequencesBecomeSplits) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"2", "7"});
  b.Ints("sizes", {2}, {3, 4});
  b.Ints("size", {}, {3});
  b.Ints("zero", {}, {0});
  b.Ints("last", {}, {-1});
  SetInt(b.Op("SplitToSequence", {"x", "sizes"}, {"s"}), "axis", 1);
  SetInt(b.Op("SplitToSequence", {"x", "size"}, {"t"}), "axis", -1);
  b.Op("SequenceAt", {"s", "zero"}, {"a"});
  b.Op("SequenceAt", {"t", "last"}, {"b"});
  b.Output("a");
  b.Output("b");
  auto graph = b.Read(folder / "m.onnx");
  VerifyGraph(*graph);
  const Node& s = *graph->outputs[0]->producer;
  EXPECT_EQ(s.op(), "Split");
  EXPECT_EQ(s.in(1)->data->AsInts(), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(graph->outputs[0]->producer_index, 0);
  EXPECT_EQ(graph->outputs[1]->producer->in(1)->data->AsInts(), (std::vector<int64_t>{3, 3, 1}));
  EXPECT_EQ(graph->outputs[1]->producer_index, 2);
  EXPECT_EQ(graph->outputs[0]->name, "a");

  ModelBuilder beyond = b;
  beyond.Ints("two", {}, {2});
  beyond.Op("SequenceAt", {"s", "two"}, {"c"});
  EXPECT_TRUE(Has(ErrorOf([&] { beyond.Read(folder / "m.onnx"); }), "SequenceAt 'n_c'"));
  ModelBuilder misused = b;
  misused.Op("Neg", {"s"}, {"c"});
  EXPECT_TRUE(Has(ErrorOf([&] { misused.Read(folder / "m.onnx"); }), "sequence"));
}

}  // namespace
}  // namespace weir
