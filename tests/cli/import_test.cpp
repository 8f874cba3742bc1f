#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands.h"
#include "cli/options.h"
#include "graph/error.h"
#include "graph/text.h"
#include "importer/importer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

const std::string kModel =
    std::string(WEIR_SOURCE_DIR) + "/models/mixtral/hf18_batched_mm_sdpa.onnx";
const std::string kNames = std::string(WEIR_SOURCE_DIR) + "/models/mixtral/weights.safetensors";

// Runs a command with captured standard output, which is released when the command throws.
template <class Command>
std::string Output(Command command, std::vector<const char*> arguments) {
  struct Capture {
    Capture() { testing::internal::CaptureStdout(); }
    ~Capture() {
      if (!read) testing::internal::GetCapturedStdout();
    }
    bool read = false;
  } capture;
  EXPECT_EQ(command(static_cast<int>(arguments.size()), arguments.data()), kExitOk);
  capture.read = true;
  return testing::internal::GetCapturedStdout();
}

class Scratch : public testing::Test {
 protected:
  Scratch()
      : folder_(fs::path(testing::TempDir()) / ("weir_import_test_" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~Scratch() override { fs::remove_all(folder_); }
  std::string Path(const char* name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

TEST(ImportCommand, SaysWhatTheModelIs) {
  const std::string text = Output(ImportCommand, {"import", kModel.c_str()});
  EXPECT_NE(text.find("Linear -> Softmax -> TopK(2) -> normalise"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(
      Output(ImportCommand, {"import", kModel.c_str(), "--json", "--names", kNames.c_str()}));
  EXPECT_EQ(json["experts"], 5);
  bool named = false;
  for (const auto& parameter : json["trained"])
    named = named || parameter["name"] == "model.layers.1.mlp.experts.down_proj";
  EXPECT_TRUE(named);
}

TEST(ImportCommand, WrongUseIsAnError) {
  EXPECT_THROW(Output(ImportCommand, {"import"}), UsageError);
  EXPECT_THROW(Output(ImportCommand, {"import", kModel.c_str(), "--jsno"}), UsageError);
  EXPECT_THROW(Output(ImportCommand, {"import", "nowhere.onnx"}), Error);
  EXPECT_THROW(Output(ImportCommand, {"import", kModel.c_str(), "--disable-pass", "fuse_expert"}),
               Error);
}

TEST_F(Scratch, RewrittenInferenceGraphReadsBack) {
  const std::string out = Path("canonical.onnx");
  Output(RewriteCommand,
         {"rewrite", kModel.c_str(), "-o", out.c_str(), "--inference", "--names", kNames.c_str()});
  const auto graph = ReadOnnx(out);
  int experts = 0;
  for (const auto& node : graph->nodes()) experts += node->op() == "Experts";
  EXPECT_EQ(experts, 2);
}

TEST_F(Scratch, TrainingGraphAtALaunchShapeIsWrittenAsText) {
  const std::string out = Path("train.txt"), log = Path("passes.log");
  Output(RewriteCommand, {"rewrite", kModel.c_str(), "-o", out.c_str(), "--batch", "2",
                          "--sequence", "8", "--log", log.c_str()});
  std::stringstream text, lines;
  text << std::ifstream(out).rdbuf();
  lines << std::ifstream(log).rdbuf();
  EXPECT_NE(text.str().find("int64[2,8] input_ids"), std::string::npos);
  EXPECT_NE(text.str().find("AdamW"), std::string::npos);
  EXPECT_NE(lines.str().find("fuse_experts"), std::string::npos);
}

TEST_F(Scratch, WrongUseOfRewriteIsAnError) {
  const std::string onnx = Path("x.onnx"), other = Path("x.pb");
  EXPECT_THROW(Output(RewriteCommand, {"rewrite", kModel.c_str(), "-o", other.c_str()}),
               UsageError);
  EXPECT_THROW(
      Output(RewriteCommand, {"rewrite", kModel.c_str(), "-o", onnx.c_str(), "--batch", "2"}),
      UsageError);
  EXPECT_FALSE(fs::exists(onnx));
}

}  // namespace
}  // namespace weir
