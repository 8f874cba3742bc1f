#include <gtest/gtest.h>

#include <cstdlib>

#include "graph/builder.h"
#include "graph/op_schema.h"
#include "graph/parameter.h"
#include "graph/text.h"
#include "importer/importer.h"
#include "importer/metadata.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// A little of everything a training graph holds.
std::unique_ptr<Graph> TrainingGraph() {
  auto graph = std::make_unique<Graph>();
  graph->name = "train";
  graph->notices = {"note"};
  graph->stripped = {"mask"};
  Value* x = graph->AddInput("x", DType::kFloat32, {Dim::Batch(), Dim::Sequence(), 2});
  Value* step = graph->AddInput("step", DType::kInt64, {});
  const auto persistent = [&](const char* name, Role role) {
    Value* value = graph->AddValue(name, role);
    value->dtype = DType::kFloat32;
    value->shape = {2, 2};
    value->has_shape = true;
    return value;
  };
  Value* w = persistent("layer.w", Role::kParameter);
  Value* gradient = persistent("layer.w.grad", Role::kGradient);
  Value* m = persistent("layer.w.m", Role::kOptimizerState);
  // The user's file holds the transpose, in bfloat16.
  w->parameter = std::make_unique<ParameterInfo>();
  w->parameter->initializers = {{.tensor = "val_7",
                                 .dims = {2, 2},
                                 .dtype = DType::kBFloat16,
                                 .perm = {1, 0},
                                 .offset = {0, 0}}};
  w->parameter->originals = {
      {.tensor = "layer.w", .dims = {2, 2}, .perm = {}, .deinterleave_axis = 1, .offset = {}}};
  w->parameter->tied_initializers = {"val_8"};
  w->parameter->original_rank = 2;
  const std::vector<float> file = {1, 2, 3, 4};
  graph->initializers["val_7"] =
      TensorData::Owned(DType::kBFloat16, {2, 2}, EncodeFloats(file, DType::kBFloat16));

  Builder builder(*graph);
  builder.SetSource("MatMul '/l0/q'");
  Value* scaled = builder.Op("Mul", {x, builder.Float(0.1f)});
  Value* y = builder.Op("Linear", {scaled, w});
  builder.SetPhase(Phase::kBackward);
  builder.SetSource("");
  Value* dw = builder.Op("LinearWeightGradient", {scaled, y, gradient});
  builder.SetPhase(Phase::kUpdate);
  builder.Op("ZeroFill", {m},
             {{"axis", int64_t{-1}},
              {"exact", 0.9},
              {"exact_list", std::vector<double>{0.1, 0.5}},
              {"plain", 0.5},
              {"name", std::string("s")},
              {"ints", std::vector<int64_t>{}},
              {"tensor", TensorData::FromInts({1}, {5})}});
  (void)step;
  graph->outputs = {y, dw};
  return graph;
}

TEST(WriteOnnx, TrainingGraphsComeBackTheSame) {
  TempFolder folder;
  const auto graph = TrainingGraph();
  WriteOnnx(*graph, folder / "t.onnx");
  const auto read = ReadOnnx(folder / "t.onnx");
  VerifyGraph(*read);
  EXPECT_EQ(ToText(*read), ToText(*graph));
  EXPECT_EQ(read->notices, graph->notices);
  EXPECT_EQ(read->stripped, graph->stripped);
  ASSERT_EQ(read->nodes().size(), graph->nodes().size());
  for (auto a = graph->nodes().begin(), b = read->nodes().begin(); a != graph->nodes().end();
       ++a, ++b) {
    EXPECT_EQ((*a)->phase, (*b)->phase);
    EXPECT_TRUE((*a)->source.empty() || (*a)->source == (*b)->source);
    EXPECT_TRUE(Equal((*a)->attributes, (*b)->attributes)) << (*a)->op();
    EXPECT_EQ(ToString((*a)->out()->shape), ToString((*b)->out()->shape));
    EXPECT_EQ((*a)->out()->dtype, (*b)->out()->dtype);
  }
  for (const auto& value : graph->values()) {
    const Value* twin = read->FindValue(value->name);
    ASSERT_NE(twin, nullptr) << value->name;
    EXPECT_EQ(twin->role, value->role) << value->name;
  }
  const Value& w = *read->FindValue("layer.w");
  ASSERT_NE(w.parameter, nullptr);
  EXPECT_EQ(LoadParameter(*read, w), (std::vector<float>{1, 3, 2, 4}));
  EXPECT_EQ(w.parameter->initializers[0].dtype, DType::kBFloat16);
  EXPECT_EQ(w.parameter->originals[0].deinterleave_axis, 1);
  EXPECT_EQ(w.parameter->tied_initializers, (std::vector<std::string>{"val_8"}));
  EXPECT_EQ(w.parameter->original_rank, 2);
}

TEST(WriteOnnx, LargeTensorsGoToTheDataFile) {
  TempFolder folder;
  Graph graph;
  Builder builder(graph);
  Value* x = graph.AddInput("x", DType::kFloat32, {300});
  Value* big = graph.AddConstant("big", TensorData::FromFloats({300}, std::vector<float>(300, 2)));
  Value* twin = graph.AddConstant("twin", big->data);
  Value* small = graph.AddConstant("small", TensorData::FromFloats({1}, {3}));
  graph.outputs = {
      builder.Op("Add", {builder.Op("Mul", {builder.Op("Add", {x, big}), twin}), small})};
  WriteOnnx(graph, folder / "m.onnx");
  EXPECT_EQ(fs::file_size(folder / "m.onnx.data"), 1200u);  // shared bytes are stored once
  EXPECT_EQ(ReadOnnx(folder / "m.onnx")->initializers.at("twin")->AsFloats(),
            std::vector<float>(300, 2));
  WriteOnnx(graph, folder / "n.onnx", {.external_threshold_bytes = 1 << 20});
  EXPECT_FALSE(fs::exists(folder / "n.onnx.data"));
  WriteOnnx(
      graph, folder / "o.onnx",
      {.external_threshold_bytes = 1 << 20, .inline_limit_bytes = 2000, .data_file = "o.bin"});
  EXPECT_EQ(fs::file_size(folder / "o.bin"), 1200u);
  for (const std::string location : {"../o.bin", "/o.bin", "a/o.bin", "."}) {
    EXPECT_NE(ErrorOf([&] { WriteOnnx(graph, folder / "p.onnx", {.data_file = location}); }), "");
  }
}

TEST(WriteOnnx, StoredModelsComeBackTheSame) {
  TempFolder folder;
  for (const std::string name :
       {"mixtral/dynamo18_batched_mm_sdpa", "gpt_oss/dynamo23_batched_mm_eager",
        "genai/gpt_oss_int4_cpu_i32/model"}) {
    const auto graph = ReadOnnx(WEIR_SOURCE_DIR "/models/" + name + ".onnx");
    InferGraph(*graph);
    WriteOnnx(*graph, folder / "m.onnx");
    EXPECT_EQ(ToText(*ReadOnnx(folder / "m.onnx")), ToText(*graph)) << name;
  }
}

TEST(WriteOnnx, OtherToolsReadTheFile) {
  TempFolder folder;
  WriteOnnx(*TrainingGraph(), folder / "t.onnx", {.external_threshold_bytes = 4});
  if (std::system("python3 -c 'import onnx' >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "python3 with the onnx package is not installed";
  }
  const std::string script =
      "import onnx,sys; m=onnx.load(sys.argv[1]); onnx.checker.check_model(m);"
      "assert m.graph.node[1].op_type=='Linear' and m.graph.node[1].domain=='ai.weir';"
      "assert {p.key:p.value for p in m.graph.node[2].metadata_props}=={'weir.phase':'backward'};"
      "assert any(v.type.tensor_type.shape.dim[0].dim_param=='batch' for v in m.graph.value_info)";
  const std::string path = (folder / "t.onnx").string();
  EXPECT_EQ(std::system(("python3 -c \"" + script + "\" " + path).c_str()), 0);
}

TEST(WriteOnnx, DamagedMetadataIsRefused) {
  TempFolder folder;
  WriteOnnx(*TrainingGraph(), folder / "t.onnx");
  const auto damage = [&](const std::string& from, const std::string& to) {
    onnx::ModelProto model = *ParseModel(folder / "t.onnx");
    std::string& text = *model.mutable_metadata_props(0)->mutable_value();
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    WriteFile(folder / "d.onnx", model.SerializeAsString());
    return ErrorOf([&] { ReadOnnx(folder / "d.onnx"); });
  };
  EXPECT_NE(damage("{", "["), "");
  EXPECT_NE(damage("\"gradient\"", "\"nonsense\""), "");
  EXPECT_NE(damage("\"gradient\"", "\"activation\""), "");
  EXPECT_NE(damage("\"perm\":[1,0]", "\"perm\":[1,5]"), "");
  EXPECT_NE(damage("\"parameters\":{\"layer.w\"", "\"parameters\":{\"other\""), "");
  EXPECT_EQ(damage("\"note\"", "\"other\""), "");
}

TEST(Metadata, DimsAreParsedAsPrinted) {
  for (const Dim& dim :
       {Dim(7), Dim::Batch(), Dim::Sequence(), Dim(2) * Dim::Batch() * Dim::Sequence(),
        Dim::Sequence() * Dim::Sequence()}) {
    EXPECT_EQ(ParseDim(ToString(dim)), dim) << ToString(dim);
  }
  for (const char* text : {"", "?", "x", "2*", "batch*y", "99999999999999999999"}) {
    EXPECT_FALSE(ParseDim(text).IsKnown()) << text;
  }
}

}  // namespace
}  // namespace weir
