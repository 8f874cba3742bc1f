// weights.safetensors is the whole model: what is frozen is in it too, as it was.
#include <algorithm>
#include <map>
#include <set>

#include "graph/error.h"
#include "importer/importer.h"
#include "importer/safetensors.h"
#include "tests/cli/commands.h"

namespace weir {
namespace {

using Tensors = std::map<std::string, TensorDataPtr>;
constexpr const char* kTable = "model.embed_tokens.weight";
constexpr const char* kRouterBias = "model.layers.1.mlp.gate.e_score_correction_bias";

bool SameBytes(const TensorData& a, const TensorData& b) { return a.dtype() == b.dtype() && a.dims() == b.dims() && std::ranges::equal(a.bytes(), b.bytes()); }

// DeepSeek's router has a bias that only selects experts: no gradient reaches it.
class UntrainedInFile : public Cli {
 protected:
  static std::string Model() { return (kModels / "deepseek_v3/dynamo18_batched_mm_sdpa.onnx").string(); }
  static Tensors Source() { return ReadSafetensors(kModels / "deepseek_v3/weights.safetensors").tensors; }
  std::string Path(const std::string& file) const { return (folder_ / file).string(); }
  static std::set<std::string> NamesIn(const Tensors& tensors) {
    std::set<std::string> names;
    for (const auto& [name, tensor] : tensors) names.insert(name);
    return names;
  }
  std::string Names(const Tensors& tensors) const {
    WriteSafetensors(folder_ / "names.safetensors", tensors);
    return " --names " + Path("names.safetensors");
  }
  Tensors Trained(const std::string& out, const std::string& more) const {
    const Result result = Weir(StrCat("train ", Model(), " --data ", Path("data.txt"), " --out ", Path(out), " --steps 2 --micro-batch 2 --sequence 16 --learning-rate 1e-2 ", more));
    EXPECT_EQ(result.code, 0) << result.output;
    return ReadSafetensors(folder_ / out / "weights.safetensors").tensors;
  }
  // Those of `names` are as in the source, and all others have moved.
  static void ExpectUntouched(const Tensors& trained, const Tensors& source, const std::set<std::string>& names) {
    for (const auto& [name, tensor] : source) {
      ASSERT_TRUE(trained.contains(name)) << name;
      EXPECT_EQ(SameBytes(*trained.at(name), *tensor), names.contains(name)) << name;
    }
  }
};

TEST_F(UntrainedInFile, AreInTheFileWithTheirBytes) {
  const auto source = Source();
  for (const std::string& ranks : {std::string(), std::string(" --ranks 2 --threads 1 --expert-parallel 2 --shard-optimizer")}) {
    const auto trained = Trained("run" + std::to_string(ranks.size()), Names(source) + " --freeze '*embed*'" + ranks);
    EXPECT_EQ(NamesIn(trained), NamesIn(source));
    ExpectUntouched(trained, source, {kTable, kRouterBias});
  }
}

// Whatever else the checkpoint has: layers that the export left out, buffers of integers.
TEST_F(UntrainedInFile, OfTheCheckpointThatTheModelHasNotAreKept) {
  auto source = Source();
  source["model.layers.2.eh_proj.weight"] = TensorData::FromFloats({2, 3}, {1, 2, 3, 4, 5, 6});
  source["position_ids"] = TensorData::FromInts({4}, {0, 1, 2, 3});
  const auto trained = Trained("run", Names(source));
  EXPECT_EQ(NamesIn(trained), NamesIn(source));
  ExpectUntouched(trained, source, {kRouterBias, "model.layers.2.eh_proj.weight", "position_ids"});
}

// A parameter that is not found may be in the checkpoint under a name that nothing gives: its old value must not pass for the trained one.
TEST_F(UntrainedInFile, OldValuesOfAParameterWithoutANameAreLeftOut) {
  auto source = Source();
  auto values = source.at("model.norm.weight")->AsFloats();
  values[5] += 1;
  source.erase("model.norm.weight");
  source["final_norm.weight"] = TensorData::FromFloats({64}, values);
  const auto trained = Trained("run", Names(source) + " --freeze '*embed*'");
  EXPECT_FALSE(trained.contains("final_norm.weight"));
  EXPECT_TRUE(SameBytes(*trained.at(kTable), *source.at(kTable)));
  EXPECT_TRUE(SameBytes(*trained.at(kRouterBias), *source.at(kRouterBias)));
}

TEST_F(UntrainedInFile, WithoutNamesHaveTheModelsOwn) {
  const auto trained = Trained("run", "--freeze '*embed*'"), source = Source();
  const auto there = ReadOnnx(Model())->initializers;
  int64_t tables = 0;
  for (const auto& [name, tensor] : trained) {
    ASSERT_TRUE(there.contains(name)) << name;
    tables += SameBytes(*tensor, *source.at(kTable)) ? 1 : 0;
  }
  EXPECT_EQ(tables, 1);
}

// The same flags as without frozen tensors; they are in the model's file what they were.
TEST_F(UntrainedInFile, ExportNeedsNoFreezeAgain) {
  const auto source = Source();
  const std::string names = Names(source);
  const auto trained = Trained("run", names + " --freeze '*embed*' --freeze '*experts*'");
  for (const std::string& freeze : {std::string(), std::string(" --freeze '*embed*'")}) {
    const Result result = Weir(StrCat("export ", Model(), names, freeze, " --weights ", Path("run/weights.safetensors"), " -o ", Path("out.onnx")));
    ASSERT_EQ(result.code, 0) << result.output;
    const auto before = ReadOnnx(Model())->initializers, after = ReadOnnx(folder_ / "out.onnx")->initializers;
    ASSERT_EQ(before.size(), after.size());
    std::set<std::string> moved;
    for (const auto& [name, tensor] : before) {
      if (!SameBytes(*tensor, *after.at(name))) moved.insert(name);
    }
    const auto has = [&](const std::string& part) { return std::ranges::any_of(moved, [&](const std::string& name) { return name.find(part) != std::string::npos; }); };
    EXPECT_FALSE(has("embed_tokens") || has("experts.gate_up") || has("correction_bias"));
    EXPECT_TRUE(has("norm.weight") && moved.size() > 15) << moved.size();
  }
}

TEST_F(UntrainedInFile, OfFilesThatLackThemExportNamesTheCause) {
  auto source = Source();
  const std::string names = Names(source);
  source.erase(kTable);
  source.erase(kRouterBias);
  WriteSafetensors(folder_ / "lacking.safetensors", source);
  const auto export_with = [&](const std::string& flags) { return Weir(StrCat("export ", Model(), flags, " --weights ", Path("lacking.safetensors"), " -o ", Path("out.onnx"))); };
  const Result frozen = export_with(names);
  EXPECT_EQ(frozen.code, 1);
  EXPECT_NE(frozen.output.find("lacks 1 of the model's 30 tensors; it may be of an earlier weir's run, which left out what it froze"), std::string::npos) << frozen.output;
  EXPECT_EQ(export_with(names + " --freeze '*embed*'").code, 0);
  const Result unnamed = export_with("");
  EXPECT_EQ(unnamed.code, 1);
  EXPECT_NE(unnamed.output.find("give the --names of its run"), std::string::npos) << unnamed.output;
}

}  // namespace
}  // namespace weir
