// Ranks of several machines that were given other files: refused before the first step, in words.
#include "cli/same_inputs.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "backend/cpu/thread_communicator.h"
#include "graph/error.h"
#include "importer/safetensors.h"
#include "tests/slurp.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// Two machines, each with a folder of its own of the same files.
class SameInputs : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / StrCat("weir_same_", info->name(), getpid());
    for (const char* machine : {"0", "1"}) {
      fs::create_directories(folder_ / machine / "docs");
      fs::copy_file(WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_sdpa.onnx", folder_ / machine / "model.onnx");
      for (const char* data : {"weights.safetensors", "extra.data"}) fs::copy_file(fs::path(WEIR_SOURCE_DIR "/models/mixtral") / data, folder_ / machine / data);
      Write(machine, "docs/a.txt", 'a');
      Write(machine, "docs/b.txt", 'b');
      Write(machine, "held.txt", 'h');
    }
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& machine, const std::string& file, char letter, int length = 4000) const {
    std::ofstream out(folder_ / machine / file);
    for (int i = 0; i < length; ++i) out << static_cast<char>(i % 31 == 0 ? letter : 'c' + i * i % 19);
  }

  struct Outcome {
    int codes[2];
    std::string texts[2];
    std::string all() const { return texts[0] + texts[1]; }
  };
  Outcome Train(const std::string& flags = "", int threads_of_rank1 = 1) const {
    Outcome outcome;
    const auto rank = [&](int r) {
      const fs::path home = folder_ / std::to_string(r), log = home / "log";
      const std::string command = StrCat("cd ", home.string(), " && RANK=", r, " WORLD_SIZE=2 WEIR_RENDEZVOUS=", (folder_ / "rendezvous").string(),
                                         " " WEIR_PROGRAM " train model.onnx --data docs --data-format text --eval-data held.txt --sequence 16 --steps 2 --out run --threads ",
                                         r == 0 ? 1 : threads_of_rank1, " ", flags, " >", log.string(), " 2>&1");
      const int status = std::system(command.c_str());
      outcome.codes[r] = WEXITSTATUS(status);
      outcome.texts[r] = Slurp(log);
    };
    std::thread other([&] { rank(1); });
    rank(0);
    other.join();
    return outcome;
  }
  void ExpectRefused(const std::string& words, const std::string& flags = "") const {
    const Outcome outcome = Train(flags);
    EXPECT_EQ(outcome.codes[0], 1) << outcome.all();
    EXPECT_EQ(outcome.codes[1], 69) << outcome.all();
    EXPECT_NE(outcome.texts[0].find("the ranks read other files than rank 0 under the same names:\n  rank 1: " + words + "\ngive every machine"), std::string::npos)
        << outcome.all();
    EXPECT_FALSE(fs::exists(folder_ / "0/run"));
  }
  fs::path folder_;
};

TEST_F(SameInputs, EqualCopiesTrain) {
  const Outcome outcome = Train();
  EXPECT_EQ(outcome.codes[0], 0) << outcome.all();
  EXPECT_EQ(outcome.codes[1], 0) << outcome.all();
}

TEST_F(SameInputs, MachinesMayHaveOtherNumbersOfThreads) {
  const Outcome outcome = Train("", 2);
  EXPECT_EQ(outcome.codes[0], 0) << outcome.all();
  EXPECT_EQ(outcome.codes[1], 0) << outcome.all();
}

TEST_F(SameInputs, AStaleCopyOfTheWeightsIsNamedByTensor) {
  Safetensors weights = ReadSafetensors(folder_ / "0/weights.safetensors");
  TensorDataPtr& embedding = weights.tensors.at("model.embed_tokens.weight");
  embedding = TensorData::FromFloats(embedding->dims(), std::vector<float>(static_cast<size_t>(embedding->elements()), 0.5f));
  WriteSafetensors(folder_ / "1/weights.safetensors", weights.tensors, weights.metadata);
  ExpectRefused("tensor 'model.embed_tokens.weight' (float[307,64] of other content)");
}

TEST_F(SameInputs, OtherNamesAreRefusedBeforeTheFirstStep) {
  Safetensors weights = ReadSafetensors(folder_ / "0/weights.safetensors");
  WriteSafetensors(folder_ / "0/names.safetensors", weights.tensors);
  auto renamed = weights.tensors.extract("model.embed_tokens.weight");
  renamed.key() = "embedding";
  weights.tensors.insert(std::move(renamed));
  WriteSafetensors(folder_ / "1/names.safetensors", weights.tensors);
  const Outcome outcome = Train("--names names.safetensors");
  EXPECT_NE(outcome.texts[0].find("rank 1: the parameters' names (--names) ("), std::string::npos) << outcome.all();
}

TEST_F(SameInputs, AnotherModelUnderTheSameNameIsRefused) {
  fs::copy_file(WEIR_SOURCE_DIR "/models/mixtral/dynamo18_batched_mm_eager.onnx", folder_ / "1/model.onnx", fs::copy_options::overwrite_existing);
  const Outcome outcome = Train();
  EXPECT_NE(outcome.codes[0], 0);
  EXPECT_NE(outcome.texts[0].find("model file 'model.onnx' ("), std::string::npos) << outcome.all();
}

TEST_F(SameInputs, DataCutShortAreNamedByFile) {
  Write("1", "docs/b.txt", 'b', 2000);
  ExpectRefused("--data file 'docs/b.txt' (2000 tokens in 1 documents, 4000 tokens in 1 documents on rank 0)");
}

TEST_F(SameInputs, DataOfOtherContentAreNamedByFile) {
  Write("1", "docs/a.txt", 'x');
  ExpectRefused("--data file 'docs/a.txt' (4000 tokens in 1 documents of other content)");
}

TEST_F(SameInputs, AFileThatOnlyRank0HasIsNamed) {
  fs::remove(folder_ / "1/docs/b.txt");
  ExpectRefused("--data file 'docs/b.txt' (on rank 0 only)");
}

TEST_F(SameInputs, OtherDataToEvaluateOnAreNamed) {
  Write("1", "held.txt", 'x');
  ExpectRefused("--eval-data file 'held.txt' (4000 tokens in 1 documents of other content)");
}

TEST(CompareInputs, NamesEveryRankThatDiffersAndAtMostFourThings) {
  std::string told;
  const auto compare = [&](Communicator& world) {
    std::vector<RankInput> inputs;
    for (int i = 0; i < 7; ++i) inputs.push_back({StrCat("tensor 't", i, "'"), "float32[2]", 5});
    if (world.rank() == 1) inputs[3].hash = 6;
    if (world.rank() == 3) {
      for (RankInput& input : inputs) input.hash = 7;
    }
    try {
      CheckSameInputs(world, inputs);
    } catch (const PeerFailure&) {
    } catch (const Error& error) {
      EXPECT_EQ(world.rank(), 0);
      told = error.what();
      throw;
    }
  };
  EXPECT_THROW(RunRanks(4, compare), Error);
  EXPECT_NE(told.find("rank 1: tensor 't3' (float32[2] of other content)\n  rank 3: tensor 't0'"), std::string::npos) << told;
  EXPECT_NE(told.find("'t3' (float32[2] of other content) and 3 more\n"), std::string::npos) << told;
  EXPECT_EQ(told.find("rank 2:"), std::string::npos) << told;
}

TEST(HashSample, SeesFirstAndLastByteSizeAndEveryByteOfSmallTensors) {
  std::vector<std::byte> large(3000001, std::byte{1}), small(64 * 4096, std::byte{1});
  const auto changed = [](std::vector<std::byte> bytes, size_t at) {
    bytes[at] = std::byte{2};
    return HashSample(bytes);
  };
  EXPECT_NE(changed(large, 0), HashSample(large));
  EXPECT_NE(changed(large, large.size() - 1), HashSample(large));
  EXPECT_NE(HashSample(std::span(large).first(large.size() - 1)), HashSample(large));
  // No gap is wider than (3000001 - 4096) / 63 bytes, rounded up, less a block.
  std::vector<std::byte> gap = large;
  std::fill_n(gap.begin() + 1000000, 3000001 / 63, std::byte{2});
  EXPECT_NE(HashSample(gap), HashSample(large));
  for (size_t at = 0; at < small.size(); at += 4001) EXPECT_NE(changed(small, at), HashSample(small)) << at;
}

}  // namespace
}  // namespace weir
