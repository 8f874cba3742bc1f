// Packed documents that do not attend to each other, from the command line; and the loader's bench.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class Packing : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    std::ofstream data(folder_ / "data.jsonl");
    for (int i = 0; i < 60; ++i) {
      data << "{\"input_ids\": [";
      for (int t = 0; t < 3 + i % 11; ++t) data << (t == 0 ? "" : ", ") << (i * 7 + t * 13) % 256;
      data << "]}\n";
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  int Weir(const std::string& arguments) const {
    return WEXITSTATUS(std::system((WEIR_PROGRAM " " + arguments + " >" + (folder_ / "log").string() + " 2>&1").c_str()));
  }
  std::string Log() const { return Slurp(folder_ / "log"); }
  std::string Train(const std::string& out, const std::string& more) const {
    return "train " WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_sdpa.onnx --sequence 32 --micro-batch 2 --learning-rate 1e-2 --schedule constant --data " +
           (folder_ / "data.jsonl").string() + " --eval-data " + (folder_ / "data.jsonl").string() + " --out " + (folder_ / out).string() + " " + more;
  }
  std::string Weights(const std::string& out) const { return Slurp(folder_ / out / "weights.safetensors"); }
  const fs::path folder_ = fs::temp_directory_path() / ("weir_packing_" + std::to_string(getpid()));
};

TEST_F(Packing, IsolatedRunsResumeAndSpreadLikeOthers) {
  ASSERT_EQ(Weir(Train("attend", "--steps 4")), 0) << Log();
  ASSERT_EQ(Weir(Train("apart", "--steps 4 --pack isolate")), 0) << Log();
  EXPECT_NE(Weights("attend"), Weights("apart"));
  EXPECT_NE(Slurp(folder_ / "apart/passes.log").find("isolate_documents"), std::string::npos);
  for (const char* steps : {"2", "4"}) ASSERT_EQ(Weir(Train("parts", std::string("--pack isolate --save-every 2 --resume auto --steps ") + steps)), 0) << Log();
  EXPECT_EQ(Weights("parts"), Weights("apart"));
  ASSERT_EQ(Weir(Train("recomputed", "--steps 4 --pack isolate --recompute layer --strip 64")), 0) << Log();
  EXPECT_EQ(Weights("recomputed"), Weights("apart"));
  EXPECT_EQ(Weir(Train("parts", "--save-every 2 --resume auto --steps 6")), 1);
  EXPECT_NE(Log().find("--pack: isolate then, attend now"), std::string::npos) << Log();
}

TEST_F(Packing, WrongUseIsToldInWords) {
  EXPECT_EQ(Weir(Train("x", "--steps 1 --pack isolate --no-pack")), 2);
  EXPECT_NE(Log().find("--pack isolate and --no-pack exclude each other"), std::string::npos) << Log();
  EXPECT_EQ(Weir(Train("x", "--steps 1 --pack tightly")), 2);
  EXPECT_NE(Log().find("--pack=tightly is unknown; use attend or isolate"), std::string::npos) << Log();
}

TEST_F(Packing, TwinsAndFloat64Agree) {
  EXPECT_EQ(Weir("verify " WEIR_SOURCE_DIR "/models/olmoe/dynamo18_batched_mm_sdpa.onnx --sequence 24 --recompute layer --strip 64 --pack isolate"), 0) << Log();
}

TEST_F(Packing, TheLoadersBenchPrintsItsRate) {
  ASSERT_EQ(Weir("bench loader --sequence 64 --tokens 1000000 --json --data " + (folder_ / "data.jsonl").string()), 0) << Log();
  const auto json = nlohmann::json::parse(Log());
  EXPECT_EQ(json["documents"], 60);
  EXPECT_GE(json["tokens"].get<int64_t>(), 1000000);
  EXPECT_GT(json["times_rate"].get<double>(), 10) << "of 40000 tokens/s, on a busy machine and short documents";
  EXPECT_EQ(Weir("bench loader --sequence 0 --data x"), 2);
  EXPECT_EQ(Weir("bench loader"), 2);
}

}  // namespace
}  // namespace weir
