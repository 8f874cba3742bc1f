// SAV-05: weights.safetensors of a model whose head is its embedding. One copy, and a header that names every tensor a loader expects.
#include <cstring>
#include <set>

#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "tests/cli/commands.h"

namespace weir {
namespace {

constexpr const char* kExport = "dynamo18_batched_mm_sdpa.onnx";
constexpr const char* kTable = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

class TiedModel : public Cli {
 protected:
  // Mixtral with the values of its embedding in its head: the framework's tensor, and the exporter's transposed copy.
  void SetUp() override {
    Cli::SetUp();
    for (const char* file : {kExport, "weights.safetensors", "extra.data"}) fs::copy_file(kModels / "mixtral" / file, folder_ / file);
    const auto tensors = ReadSafetensors(folder_ / "weights.safetensors").tensors;
    const auto table = tensors.at(kTable)->AsFloats(), old = tensors.at(kHead)->AsFloats();
    Replace("weights.safetensors", old, table);
    Replace("extra.data", Transposed(old), Transposed(table));
    auto one = tensors;
    one.erase(kHead);
    WriteSafetensors(folder_ / "one.safetensors", one, {{"format", "pt"}});
  }
  static std::vector<float> Transposed(const std::vector<float>& matrix, size_t columns = 64) {
    std::vector<float> turned(matrix.size());
    const size_t rows = matrix.size() / columns;
    for (size_t i = 0; i < matrix.size(); ++i) turned[i % columns * rows + i / columns] = matrix[i];
    return turned;
  }
  void Replace(const std::string& file, const std::vector<float>& old, const std::vector<float>& with) const {
    std::string bytes = Slurp(folder_ / file);
    const size_t place = bytes.find(std::string_view(reinterpret_cast<const char*>(old.data()), old.size() * sizeof(float)));
    ASSERT_NE(place, std::string::npos) << file;
    std::memcpy(bytes.data() + place, with.data(), with.size() * sizeof(float));
    std::ofstream(folder_ / file, std::ios::binary) << bytes;
  }
  std::string Path(const std::string& file) const { return (folder_ / file).string(); }
  // Trains two steps and returns what was said.
  std::string Run(const std::string& out, const std::string& names, const std::string& more = "", const std::string& model = kExport) const {
    const Result result = Weir(StrCat("train ", Path(model), " --data ", Path("data.txt"), " --out ", Path(out), " --steps 2 --micro-batch 1 --sequence 16 ",
                                      names.empty() ? "" : "--names " + Path(names), " ", more));
    EXPECT_EQ(result.code, 0) << result.output;
    return result.output;
  }
  void Export(const std::string& names, const std::string& weights, const std::string& out) const {
    const Result result = Weir(StrCat("export ", Path(kExport), " --names ", Path(names), " --weights ", Path(weights), " -o ", Path(out)));
    ASSERT_EQ(result.code, 0) << result.output;
  }
  Safetensors Weights(const std::string& out) const { return ReadSafetensors(folder_ / out / "weights.safetensors"); }
  // Names of tensors, and of those that the header ties to one of them.
  static std::set<std::string> Expected(const Safetensors& file) {
    std::set<std::string> names;
    for (const auto& [name, tensor] : file.tensors) names.insert(name);
    for (const auto& [name, kept] : file.metadata) {
      if (file.tensors.contains(kept)) names.insert(name);
    }
    return names;
  }
  std::set<std::string> NamesOfTheModel() const { return Expected(ReadSafetensors(folder_ / "weights.safetensors")); }
};

// The form of safetensors.torch.save_model: transformers and load_model of safetensors tie again what it ties.
TEST_F(TiedModel, IsSavedOnceAndTheHeaderNamesTheOther_SAV05) {
  Run("run", "weights.safetensors");
  const Safetensors saved = Weights("run");
  EXPECT_TRUE(saved.tensors.contains(kTable) && !saved.tensors.contains(kHead));
  EXPECT_EQ(saved.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"step", "2"}, {kHead, kTable}}));
  EXPECT_EQ(Expected(saved), NamesOfTheModel());
}

TEST_F(TiedModel, IsSavedUnderBothNamesWhenAsked_SAV05) {
  Run("once", "weights.safetensors");
  const std::string said = Run("both", "weights.safetensors", "--save-tied both --ranks 2 --threads 1");
  EXPECT_EQ(said.find("--save-tied"), std::string::npos) << said;
  Run("one", "weights.safetensors", "--save-tied both");
  const Safetensors once = Weights("once"), one = Weights("one"), both = Weights("both");
  EXPECT_EQ(both.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"step", "2"}}));
  EXPECT_EQ(Expected(both), NamesOfTheModel());
  EXPECT_EQ(both.tensors.at(kTable)->AsFloats(), both.tensors.at(kHead)->AsFloats());
  EXPECT_EQ(one.tensors.at(kHead)->AsFloats(), once.tensors.at(kTable)->AsFloats());
  EXPECT_EQ(one.tensors.size(), once.tensors.size() + 1);
}

// Either form goes back into the model's file, both uses of it, and names that file again: the next run writes the same names.
TEST_F(TiedModel, GoesRoundThroughExportAndImport_SAV05) {
  for (const std::string form : {"once", "both"}) {
    Run(form, "weights.safetensors", "--save-tied " + form);
    Export("weights.safetensors", form + "/weights.safetensors", form + ".onnx");
    const auto graph = ReadOnnx(folder_ / (form + ".onnx"));
    const auto table = Weights(form).tensors.at(kTable)->AsFloats();
    EXPECT_EQ(graph->initializers.at(kTable)->AsFloats(), table) << form;
    int64_t heads = 0;
    for (const auto& [name, tensor] : graph->initializers) heads += tensor->elements() == 307 * 64 && tensor->AsFloats() == Transposed(table) ? 1 : 0;
    EXPECT_EQ(heads, 1) << form << ": the exporter's transposed copy";
    Run(form + "-again", form + "/weights.safetensors", "", form + ".onnx");
    EXPECT_EQ(Weights(form + "-again").metadata.at(kHead), kTable) << form;
    EXPECT_EQ(Expected(Weights(form + "-again")), NamesOfTheModel()) << form;
  }
}

// As safetensors.torch.save_model writes: the first name by the alphabet is kept.
TEST_F(TiedModel, AFileThatKeepsTheOtherNameIsExported_SAV05) {
  Run("run", "weights.safetensors");
  Safetensors other = Weights("run");
  auto node = other.tensors.extract(kTable);
  node.key() = kHead;
  other.tensors.insert(std::move(node));
  WriteSafetensors(folder_ / "other.safetensors", other.tensors, {{"format", "pt"}, {kTable, kHead}});
  for (const std::string names : {"one.safetensors", "weights.safetensors"}) {
    Export(names, "other.safetensors", names + ".onnx");
    EXPECT_EQ(ReadOnnx(folder_ / (names + ".onnx"))->initializers.at(kTable)->AsFloats(), Weights("run").tensors.at(kTable)->AsFloats()) << names;
  }
}

// Two values for the one matrix: neither is taken for both.
TEST_F(TiedModel, WeightsWhoseHeadDiffersAreRefused_IMP16) {
  Run("run", "weights.safetensors", "--save-tied both");
  Safetensors apart = Weights("run");
  auto head = apart.tensors.at(kHead)->AsFloats();
  head[5] += 0.5f;
  apart.tensors[kHead] = TensorData::FromFloats(apart.tensors.at(kHead)->dims(), head);
  WriteSafetensors(folder_ / "apart.safetensors", apart.tensors, {{"format", "pt"}, {kHead, kTable}});
  const std::string model = StrCat(Path(kExport), " --names ", Path("weights.safetensors"));
  for (const std::string& command : {StrCat("export ", model, " --weights ", Path("apart.safetensors"), " -o ", Path("out.onnx")),
                                     StrCat("train ", model, " --data ", Path("data.txt"), " --out ", Path("next"), " --steps 1 --sequence 16 --initial-load ", Path("apart.safetensors"))}) {
    const Result result = Weir(command);
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_NE(result.output.find("'model.embed_tokens.weight' and 'lm_head.weight', which the model has as one tensor, with different values"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("at element 5"), std::string::npos) << result.output;
  }
  EXPECT_FALSE(fs::exists(folder_ / "out.onnx"));
}

// transformers' own checkpoints of tied models have no head, and this model's file has it under a name of the exporter's alone.
TEST_F(TiedModel, WhatHasOneNameIsSavedAsItWasRead_SAV05) {
  const std::string said = Run("run", "one.safetensors", "--save-tied both");
  EXPECT_NE(said.find("neither --names nor the model's file has a second name for 'model.embed_tokens.weight': it is saved once"), std::string::npos) << said;
  EXPECT_EQ(Expected(Weights("run")), Expected(ReadSafetensors(folder_ / "one.safetensors")));
  Run("unnamed", "");
  std::set<std::string> tables;
  for (const auto& [name, tensor] : Weights("unnamed").tensors) {
    if (tensor->elements() == 307 * 64) tables.insert(name);
  }
  EXPECT_EQ(tables, std::set<std::string>{kTable}) << "of the exporter's names, too";
}

// A checkpoint that was untied, say: its names are taken, and which of the two the graph has is told.
TEST_F(TiedModel, ANamesFileWhoseHeadIsAnotherIsTold) {
  auto apart = ReadSafetensors(folder_ / "weights.safetensors").tensors;
  std::vector<float> head = apart.at(kHead)->AsFloats();
  head[64 + 3] = 2.5f;
  apart[kHead] = TensorData::FromFloats(apart.at(kHead)->dims(), head);
  WriteSafetensors(folder_ / "apart.safetensors", apart);
  const Result named = Weir("import " + Path(kExport) + " --names " + Path("apart.safetensors"));
  EXPECT_EQ(named.code, 0);
  EXPECT_NE(named.output.find("'lm_head.weight' of the weights file is 2.5 at [1,3] and 'model.embed_tokens.weight' "), std::string::npos) << named.output;
  EXPECT_EQ(Weir("import " + Path(kExport) + " --names " + Path("weights.safetensors")).output.find("of the weights file is"), std::string::npos);
}

TEST_F(TiedModel, TheFlagTakesTwoWordsAndSaysWhenItChangesNothing) {
  const Result wrong = Weir(Train("a", "--save-tied twice"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.output.find("--save-tied must be once or both, got twice"), std::string::npos) << wrong.output;
  const Result idle = Weir(Train("b", "--save-tied both"));
  EXPECT_NE(idle.output.find("notice: --save-tied both changes nothing here: the head is not the embedding\n"), std::string::npos) << idle.output;
}

}  // namespace
}  // namespace weir
