#include "importer/untie_initializers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "importer/importer.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

const std::string kGain = "model.model.layers.0.norm.weight";

// As torch.onnx writes them: the path of modules, then the node.
onnx::NodeProto& In(onnx::NodeProto& node, const std::string& scope) {
  std::string list = "['', ";
  for (size_t at = 0; !scope.empty() && at != std::string::npos;) {
    at = scope.find('.', at + 1);
    list += "'" + scope.substr(0, at) + "', ";
  }
  onnx::StringStringEntryProto entry;
  entry.set_key("pkg.torch.onnx.name_scopes");
  entry.set_value(list + "'" + node.name() + "']");
  AddUnknownField(node, kNodeMetadata, entry.SerializeAsString());
  return node;
}

// Gains of two layers and the last norm, all ones, stored once.
ModelBuilder FreshNorms() {
  ModelBuilder b;
  b.Input("x", {"batch", "2"});
  b.Floats(kGain, {2}, {1, 1});
  In(b.Op("Mul", {"x", kGain}, {"a"}), "model.model.layers.0.norm");
  In(b.Op("Mul", {kGain, "a"}, {"b"}), "model.model.layers.1.norm");
  In(b.Op("Mul", {"b", kGain}, {"y"}), "model.model.last");
  b.Output("y");
  return b;
}

std::vector<std::string> Untie(ModelBuilder& b, const TempFolder& folder) {
  return UntieInitializers(b.model, folder / "m.onnx");
}

std::vector<std::string> Initializers(ModelBuilder& b) {
  std::vector<std::string> names;
  for (const auto& tensor : b.graph().initializer()) names.push_back(tensor.name());
  return names;
}

std::vector<std::string> InputsOf(ModelBuilder& b, const std::string& output) {
  for (const auto& node : b.graph().node()) {
    if (node.output(0) == output) return {node.input().begin(), node.input().end()};
  }
  return {};
}

using Strings = std::vector<std::string>;

TEST(UntieInitializers, EveryNormGetsItsOwnGain) {
  TempFolder folder;
  ModelBuilder b = FreshNorms();
  const Strings notices = Untie(b, folder);
  EXPECT_EQ(Initializers(b), (Strings{kGain, "model.model.layers.1.norm.weight", "model.model.last.weight"}));
  EXPECT_EQ(InputsOf(b, "a"), (Strings{"x", kGain}));
  EXPECT_EQ(InputsOf(b, "b"), (Strings{"model.model.layers.1.norm.weight", "a"}));
  EXPECT_EQ(InputsOf(b, "y"), (Strings{"b", "model.model.last.weight"}));
  EXPECT_EQ(notices, Strings{"the exporter stored equal tensors once, as '" + kGain +
                             "': trained apart are also 'model.model.layers.1.norm.weight', 'model.model.last.weight'"});
  const std::string once = b.model.SerializeAsString();
  EXPECT_TRUE(Untie(b, folder).empty());
  EXPECT_EQ(b.model.SerializeAsString(), once);
}

TEST(UntieInitializers, TheReaderTellsAndTheExportHoldsEveryOne) {
  TempFolder folder;
  ModelBuilder b = FreshNorms();
  const auto graph = b.Read(folder / "m.onnx");
  ASSERT_EQ(graph->notices.size(), 1u);
  EXPECT_EQ(graph->initializers.size(), 3u);
  ExportOnnx(folder / "m.onnx", folder / "out.onnx",
             {{kGain, {1, 2}}, {"model.model.layers.1.norm.weight", {3, 4}}, {"model.model.last.weight", {5, 6}}});
  const auto out = ReadOnnx(folder / "out.onnx");
  EXPECT_TRUE(out->notices.empty());
  EXPECT_EQ(out->initializers.at(kGain)->AsFloats(), (std::vector<float>{1, 2}));
  EXPECT_EQ(out->initializers.at("model.model.layers.1.norm.weight")->AsFloats(), (std::vector<float>{3, 4}));
  EXPECT_EQ(out->initializers.at("model.model.last.weight")->AsFloats(), (std::vector<float>{5, 6}));
}

TEST(UntieInitializers, ExternalOnesAreWrittenApart) {
  TempFolder folder;
  ModelBuilder b = FreshNorms();
  b.graph().clear_initializer();
  b.External(kGain, {2}, {{"location", "w.data"}, {"offset", "0"}});
  WriteFile(folder / "w.data", FloatBytes({1, 1}));
  b.Save(folder / "m.onnx");
  ExportOnnx(folder / "m.onnx", folder / "out.onnx", {{"model.model.last.weight", {5, 6}}});
  const auto out = ReadOnnx(folder / "out.onnx");
  EXPECT_EQ(out->initializers.at("model.model.last.weight")->AsFloats(), (std::vector<float>{5, 6}));
  EXPECT_EQ(out->initializers.at(kGain)->AsFloats(), (std::vector<float>{1, 1}));
}

// A model's own sharing: varied values, an embedding that is the head too, a module that is called twice.
TEST(UntieInitializers, WhatIsMeantStaysShared) {
  TempFolder folder;
  ModelBuilder varied = FreshNorms();
  varied.graph().mutable_initializer(0)->set_raw_data(FloatBytes({1, 1.5}));
  EXPECT_TRUE(Untie(varied, folder).empty());
  EXPECT_EQ(varied.graph().initializer_size(), 1);

  ModelBuilder head;
  head.Input("ids", {"batch"}, onnx::TensorProto::INT64);
  head.Floats("table.weight", {3, 2}, {0, 0, 0, 0, 0, 0});
  In(head.Op("Gather", {"table.weight", "ids"}, {"h"}), "table");
  In(head.Op("Transpose", {"table.weight"}, {"t"}), "head");
  In(head.Op("MatMul", {"h", "t"}, {"y"}), "head");
  head.Output("y");
  EXPECT_TRUE(Untie(head, folder).empty());
  EXPECT_EQ(head.graph().initializer_size(), 1);

  ModelBuilder twice;
  twice.Input("x", {"batch", "2"});
  twice.Floats("norm.weight", {2}, {1, 1});
  In(twice.Op("Mul", {"x", "norm.weight"}, {"a"}), "norm");
  In(twice.Op("Mul", {"a", "norm.weight"}, {"y"}), "norm@1");
  twice.Output("y");
  const Strings notices = Untie(twice, folder);
  EXPECT_EQ(twice.graph().initializer_size(), 1);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find("module 'norm' reads it at 2 nodes"), std::string::npos) << notices[0];
}

TEST(UntieInitializers, MatricesOfZerosAreDividedByModuleOnly) {
  TempFolder folder;
  for (const bool scoped : {true, false}) {
    ModelBuilder b;
    b.Input("x", {"batch", "2"});
    b.Floats("l.0.w", {2, 2}, {0, 0, 0, 0});
    onnx::NodeProto& first = b.Op("MatMul", {"x", "l.0.w"}, {"a"});
    onnx::NodeProto& second = b.Op("MatMul", {"a", "l.0.w"}, {"y"});
    b.Output("y");
    if (scoped) In(first, "l.0"), In(second, "l.1");
    Untie(b, folder);
    EXPECT_EQ(Initializers(b), scoped ? (Strings{"l.0.w", "l.1.w"}) : Strings{"l.0.w"});
  }
}

// Without a word of the exporter's every node that scales or shifts has its own.
TEST(UntieInitializers, NodesWithoutModulesGiveTheNames) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"batch", "2"});
  b.Floats("zeros", {2}, {0, 0});
  b.Op("Add", {"x", "zeros"}, {"a"});
  b.Op("Add", {"a", "zeros"}, {"b"});
  b.Op("Mul", {"b", "zeros"}, {"y"});
  b.Output("y");
  EXPECT_EQ(Untie(b, folder).size(), 1u);
  EXPECT_EQ(Initializers(b), (Strings{"zeros", "b.bias", "y.weight"}));

  ModelBuilder paths;
  paths.Input("x", {"batch", "2"});
  paths.Floats("m.l.0.norm.weight", {2}, {1, 1});
  paths.Floats("m.l.1.norm.weight", {2}, {2, 1});  // the name is taken
  paths.Op("Mul", {"x", "m.l.0.norm.weight"}, {"a"}).set_name("/m/l.0/norm/Mul");
  paths.Op("Mul", {"a", "m.l.0.norm.weight"}, {"b"}).set_name("/m/l.1/norm/Mul");
  paths.Op("Mul", {"b", "m.l.1.norm.weight"}, {"y"}).set_name("/m/other/Mul");
  paths.Output("y");
  Untie(paths, folder);
  EXPECT_EQ(Initializers(paths), (Strings{"m.l.0.norm.weight", "m.l.1.norm.weight", "m.l.1.norm.weight.2"}));
}

// Numbers, integers and operators that use no weights: masks, tables, scatter targets.
TEST(UntieInitializers, WhatNoModelTrainsStays) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"batch", "2"});
  b.Floats("one", {1}, {1});
  b.Floats("zeros", {2}, {0, 0});
  b.Op("Mul", {"x", "one"}, {"a"});
  b.Op("Mul", {"a", "one"}, {"b"});
  b.Op("Max", {"b", "zeros"}, {"c"});
  b.Op("Max", {"c", "zeros"}, {"y"});
  b.Output("y");
  EXPECT_TRUE(Untie(b, folder).empty());
  EXPECT_EQ(b.graph().initializer_size(), 2);
}

// The exporter merges equal views of equal tensors too: 1 + w of a norm centred at zero.
TEST(UntieInitializers, ViewsAreMadeForEachReader) {
  TempFolder folder;
  ModelBuilder b;
  b.Input("x", {"batch", "2"});
  b.Floats("l.0.norm.weight", {2}, {0, 0});
  b.Floats("one", {}, {1});
  In(b.Op("Add", {"l.0.norm.weight", "one"}, {"gain"}), "l.0.norm");
  In(b.Op("Mul", {"x", "gain"}, {"a"}), "l.0.norm");
  In(b.Op("Mul", {"a", "gain"}, {"y"}), "l.1.norm");
  b.Output("y");
  Untie(b, folder);
  EXPECT_EQ(Initializers(b), (Strings{"l.0.norm.weight", "one", "l.1.norm.weight"}));
  EXPECT_EQ(InputsOf(b, "y"), (Strings{"a", "l.1.norm.weight/gain"}));
  EXPECT_EQ(InputsOf(b, "l.1.norm.weight/gain"), (Strings{"l.1.norm.weight", "one"}));
  EXPECT_EQ(b.graph().node(1).output(0), "l.1.norm.weight/gain");  // before its reader
  EXPECT_EQ(b.Read(folder / "m.onnx")->nodes().size(), 4u);
}

// torch.onnx's older exporter: Identity nodes named like the tensors that it took away.
TEST(UntieInitializers, IdentityNodesBecomeTheTensorsThatTheyName) {
  TempFolder folder;
  for (const float last : {1.0f, 2.0f}) {
    ModelBuilder b;
    b.Input("x", {"batch", "2"});
    b.Floats("l.0.weight", {2}, {1, last});
    b.Op("Identity", {"l.0.weight"}, {"l.1.weight"});
    b.Op("Mul", {"x", "l.0.weight"}, {"a"}).set_name("/l.0/Mul");
    b.Op("Mul", {"a", "l.1.weight"}, {"b"}).set_name("/l.1/Mul");
    b.Op("Mul", {"b", "l.1.weight"}, {"y"}).set_name("/l.1_1/Mul");  // the module's second call
    b.Output("y");
    Untie(b, folder);
    EXPECT_EQ(Initializers(b), last == 1 ? (Strings{"l.0.weight", "l.1.weight"}) : Strings{"l.0.weight"});
    EXPECT_EQ(b.graph().node_size(), last == 1 ? 3 : 4);
  }
}

TEST(UntieInitializers, AbsentVectorsAreDividedAbsentMatricesAreNot) {
  TempFolder folder;
  ModelBuilder b = FreshNorms();
  b.graph().clear_initializer();
  b.External(kGain, {2}, {{"location", "absent.data"}});
  b.External("w", {2, 2}, {{"location", "absent.data"}});
  In(b.Op("MatMul", {"x", "w"}, {"p"}), "p");
  In(b.Op("MatMul", {"p", "w"}, {"q"}), "q");
  b.Output("q");
  Untie(b, folder);
  EXPECT_EQ(Initializers(b), (Strings{kGain, "w", "model.model.layers.1.norm.weight", "model.model.last.weight"}));
}

// What subgraphs, outputs and callers refer to by name is left alone.
TEST(UntieInitializers, NamesInUseElsewhereStay) {
  TempFolder folder;
  ModelBuilder output = FreshNorms();
  output.Output(kGain);
  EXPECT_TRUE(Untie(output, folder).empty());
  ModelBuilder input = FreshNorms();
  input.Input(kGain, {"2"});
  EXPECT_TRUE(Untie(input, folder).empty());
  ModelBuilder below = FreshNorms();
  onnx::NodeProto& branch = below.Op("If", {"x"}, {"z"});
  onnx::AttributeProto& attribute = *branch.add_attribute();
  attribute.set_name("then_branch");
  attribute.set_type(onnx::AttributeProto::GRAPH);
  FillNode(*attribute.mutable_g()->add_node(), "Identity", {kGain}, {"inner"});
  EXPECT_TRUE(Untie(below, folder).empty());
}

}  // namespace
}  // namespace weir
