// Which names of a tied weight are kept, left out and found again. The truth is written by hand.
#include "optim/tied_weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "graph_passes/pipeline.h"
#include "importer/importer.h"

namespace weir {
namespace {

using Names = std::vector<std::string>;

class TiedNamesTest : public testing::Test {
 protected:
  // Mixtral whose head is its embedding, `there` in the exporter's file, as every other parameter with `prefix` before its name.
  void Make(const std::string& prefix, const std::string& there) {
    graph_ = ReadOnnx(WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_sdpa.onnx");
    names_ = ReadSafetensors(WEIR_SOURCE_DIR "/models/mixtral/weights.safetensors");
    CanonicalizeOptions options;
    options.names = &names_.tensors;
    PassManager passes;
    Canonicalize(*graph_, options, passes);
    Value* head = nullptr;
    for (const auto& node : graph_->nodes()) {
      if (node->op() == "Embedding") table_ = node->in(1);
      if (node->out() == graph_->outputs[0]) head = node->in(1);
    }
    for (const Use& use : std::vector<Use>(head->uses)) graph_->SetInput(use.node, static_cast<size_t>(use.index), table_);
    graph_->RemoveValue(head);
    for (Value* parameter : graph_->ValuesWithRole(Role::kParameter)) {
      for (ParameterPiece& piece : parameter->parameter->initializers) piece.tensor = prefix + piece.tensor;
    }
    table_->parameter->initializers[0].tensor = there;
    names_.tensors.erase("lm_head.weight");
  }
  Names Saved(const SavedOnce& once) const {
    Names names;
    for (const ParameterPiece& piece : SavedPieces(*table_, once)) names.push_back(piece.tensor);
    return names;
  }
  std::unique_ptr<Graph> graph_;
  Safetensors names_;
  Value* table_ = nullptr;
};

constexpr const char* kTable = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// torch.onnx keeps one initializer, named after the head; a checkpoint of transformers has the embedding alone.
TEST_F(TiedNamesTest, TheModelsFileKnowsTheNameThatTheCheckpointLacks) {
  for (const char* prefix : {"", "model."}) {
    Make(prefix, prefix + std::string(kHead));
    AddTiedNames(*graph_, names_);
    EXPECT_EQ(Saved(TiedParameters(*graph_)), Names{kTable}) << prefix;
    EXPECT_EQ(Saved({}), (Names{kTable, kHead})) << prefix;
    EXPECT_EQ(TiedNames(*table_), (std::map<std::string, std::string>{{kHead, kTable}})) << prefix;
    EXPECT_EQ(LacksTiedName(*graph_), "");
    for (const Value* parameter : graph_->ValuesWithRole(Role::kParameter)) EXPECT_TRUE(parameter == table_ || TiedNames(*parameter).empty()) << parameter->name;
  }
}

TEST_F(TiedNamesTest, TheExportersNameOfTheSameTensorIsNoOther) {
  Make("model.", "model.model.embed_tokens.weight");
  AddTiedNames(*graph_, names_);
  EXPECT_EQ(Saved({}), Names{kTable});
  EXPECT_NE(LacksTiedName(*graph_).find("it is saved once"), std::string::npos);
}

TEST_F(TiedNamesTest, AHeaderTellsThem) {
  Make("", kTable);
  names_.metadata = {{"format", "pt"}, {kHead, kTable}, {"note", "model.norm.weight.old"}, {"model.norm.weight", kTable}};
  EXPECT_EQ(TiedNamesIn(names_), (std::map<std::string, std::string>{{kHead, kTable}})) << "an entry for a tensor that is there ties nothing";
  EXPECT_EQ(WithTiedNames(names_).at(kHead), names_.tensors.at(kTable));
  AddTiedNames(*graph_, names_);
  EXPECT_EQ(Saved({}), (Names{kTable, kHead}));
}

// Of transformers' checkpoint folder; what is no tied causal language model's, or no JSON, adds nothing.
TEST_F(TiedNamesTest, AConfigBesideTheCheckpointTellsTheHead) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "weir-tied-config";
  std::filesystem::create_directories(folder);
  for (const auto& [text, known] : {std::pair{R"({"architectures": ["MixtralForCausalLM"], "tie_word_embeddings": true})", true},
                                    {R"({"architectures": ["MixtralForCausalLM"], "tie_word_embeddings": false})", false},
                                    {R"({"architectures": ["MixtralModel"], "tie_word_embeddings": true})", false},
                                    {R"({"tie_word_embeddings": true})", false},
                                    {"[", false}}) {
    std::ofstream(folder / "config.json") << text;
    Make("model.", "model.model.embed_tokens.weight");
    AddTiedNames(*graph_, names_);
    AddTiedHead(*graph_, folder / "model.safetensors");
    EXPECT_EQ(Saved({}), known ? (Names{kTable, kHead}) : Names{kTable}) << text;
    EXPECT_EQ(TiedNames(*table_).size(), known ? 1u : 0u) << text;
  }
  std::filesystem::remove_all(folder);
}

// Whatever order they were found in: loaders of the body alone know the deeper name.
TEST_F(TiedNamesTest, TheNameWithinTheBodyIsKept) {
  Make("", kTable);
  auto& originals = table_->parameter->originals;
  originals.push_back(originals[0]);
  originals[0].tensor = kHead;
  EXPECT_EQ(Saved(TiedParameters(*graph_)), Names{kTable});
  EXPECT_EQ(TiedNames(*table_), (std::map<std::string, std::string>{{kHead, kTable}}));
}

// Norms of a fresh model, which the exporter has merged, are no tied weights: a loader expects each.
TEST_F(TiedNamesTest, WhatIsEqualByChanceIsSavedUnderEachName) {
  Make("", kTable);
  Value* norm = graph_->FindValue("model.norm.weight");
  auto& originals = norm->parameter->originals;
  originals.push_back(originals[0]);
  originals[1].tensor = "model.layers.0.input_layernorm.weight";
  EXPECT_EQ(TiedParameters(*graph_), SavedOnce{kTable});
  EXPECT_EQ(SavedPieces(*norm, TiedParameters(*graph_)).size(), 2u);
}

// Rows of one tensor and rows of another fill different blocks; a copy turned round is the exporter's and no loader's.
TEST_F(TiedNamesTest, PartsAreNoCopies) {
  const std::vector<ParameterPiece> pieces = {{.tensor = "q", .dims = {4, 3}, .perm = {}, .offset = {0, 0}}, {.tensor = "k", .dims = {2, 3}, .perm = {}, .offset = {4, 0}},
                                              {.tensor = "a.qt", .dims = {3, 4}, .perm = {1, 0}, .offset = {0, 0}}};
  const auto blocks = BlocksOf(pieces);
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].size(), 2u);
  EXPECT_EQ(blocks[1][0].tensor, "k");
  Value value;
  value.parameter = std::make_unique<ParameterInfo>();
  value.parameter->initializers = pieces;
  EXPECT_TRUE(TiedNames(value).empty());
  value.name = "w";
  EXPECT_EQ(SavedPieces(value, {"w"}).size(), 2u);
  EXPECT_EQ(SavedPieces(value, {}).size(), 3u);
}

}  // namespace
}  // namespace weir
