// Data files and the loader: DAT rows of public reports, by id where one applies.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "graph/error.h"
#include "optim/data_loader.h"
#include "optim/random.h"
#include "tests/optim/data_folder.h"

namespace weir {
namespace {

// DAT-01
TEST_F(Data, ReportsFileAndPositionOfAnIdOutsideTheVocabulary_DAT01) {
  const auto files = OpenTokenFiles(Write<uint32_t>("a.bin", {1, 2, 65536}), {.format = "u32"});
  const std::string message = Message([&] { CheckTokenRange(*files[0], 65536); });
  EXPECT_NE(message.find("token 2 is 65536"), std::string::npos) << message;
  EXPECT_NO_THROW(CheckTokenRange(*files[0], 65537));
}

TEST_F(Data, LabelsAreTheNextTokenAndStopAtDocumentEnds_VCE14) {
  std::ofstream(folder_ / "a.txt") << "012";
  std::ofstream(folder_ / "b.txt") << "ABC";
  DataLoader loader(OpenTokenFiles(folder_, {}), {.sequence = 6, .shuffle = false, .vocabulary = 256});
  const Sample sample = loader.Get(0);
  EXPECT_EQ(sample.input_ids, (std::vector<int64_t>{'0', '1', '2', 'A', 'B', 'C'}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{'1', '2', -100, 'B', 'C', -100}));
}

// DAT-05
TEST_F(Data, EveryTokenOnceAnEpochWhateverTheSequenceLength_DAT05) {
  const auto path = Write<uint16_t>("a.bin", Iota<uint16_t>(100));
  for (const int64_t sequence : {1, 7, 8, 64, 100}) {
    DataLoader loader(OpenTokenFiles(path, {.format = "u16", .separator = 9}), {.sequence = sequence, .seed = 5, .vocabulary = 100});
    std::vector<int> seen(100, 0);
    for (int64_t i = 0; i < sequence; ++i) {  // sequence epochs = 100 samples
      for (int64_t s = i * 100; s < (i + 1) * 100; ++s) {
        for (const int64_t id : loader.Get(s).input_ids) ++seen[static_cast<size_t>(id)];
      }
    }
    for (const int count : seen) EXPECT_EQ(count, sequence * sequence) << sequence;
  }
}

// DAT-08, DAT-10
TEST_F(Data, ASampleIsAFunctionOfItsIndexOnly_DAT08_DAT10) {
  const auto path = Write<uint16_t>("a.bin", Iota<uint16_t>(1000));
  const auto make = [&] {
    return DataLoader(OpenTokenFiles(path, {.format = "u16", .separator = 99}), {.sequence = 16, .seed = 7, .vocabulary = 1000});
  };
  const DataLoader first = make(), second = make();
  std::vector<std::vector<int64_t>> forward;
  for (int64_t s = 0; s < 130; ++s) forward.push_back(first.Get(s).input_ids);
  for (int64_t s = 129; s >= 0; --s) {
    EXPECT_EQ(second.Get(s).input_ids, forward[static_cast<size_t>(s)]) << s;
  }
}

TEST_F(Data, ShufflesDocumentsBySeedAndEpoch) {
  std::string text;
  for (int d = 0; d < 40; ++d) std::ofstream(folder_ / (std::to_string(100 + d) + ".txt")) << char('0' + d) << char('0' + 40 + d);
  const auto ids = [&](uint64_t seed, int64_t epoch) {
    return DataLoader(OpenTokenFiles(folder_, {}), {.sequence = 80, .seed = seed, .vocabulary = 256}).Get(epoch).input_ids;
  };
  EXPECT_EQ(ids(1, 0), ids(1, 0));
  EXPECT_NE(ids(1, 0), ids(2, 0));
  EXPECT_NE(ids(1, 0), ids(1, 1));
  auto sorted = ids(1, 0);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted.front(), '0');
  EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
}

// DAT-04
TEST_F(Data, ManySmallDocuments_DAT04) {
  for (int d = 0; d < 300; ++d) std::ofstream(folder_ / (std::to_string(1000 + d) + ".txt")) << "ab";
  DataLoader loader(OpenTokenFiles(folder_, {}), {.sequence = 600, .seed = 3, .vocabulary = 256});
  EXPECT_EQ(loader.documents(), 300);
  EXPECT_EQ(loader.tokens_per_epoch(), 600);
}

TEST_F(Data, RefusesEmptyAndMissingData) {
  EXPECT_THROW(OpenTokenFiles(folder_ / "none.bin", {}), Error);
  EXPECT_THROW(DataLoader(OpenTokenFiles(folder_, {}), {.sequence = 4, .vocabulary = 256}), Error);
  EXPECT_THROW(OpenTokenFiles(Write<uint8_t>("x.dat", {1, 2}), {}), Error);
}

TEST_F(Data, WithoutPackingEveryDocumentBeginsASample) {
  std::ofstream(folder_ / "a.txt") << "01234";
  std::ofstream(folder_ / "b.txt") << "AB";
  const DataLoader loader(OpenTokenFiles(folder_, {}), {.sequence = 3, .shuffle = false, .pack = false, .vocabulary = 256});
  EXPECT_EQ(loader.tokens_per_epoch(), 7);
  EXPECT_EQ(loader.samples_per_epoch(), 3);
  const std::vector<std::vector<int64_t>> ids = {{'0', '1', '2'}, {'3', '4', 0}, {'A', 'B', 0}};
  const std::vector<std::vector<int64_t>> labels = {{'1', '2', '3'}, {'4', -100, -100}, {'B', -100, -100}};
  for (const int64_t i : {4, 1, 2, 0, 3, 5}) {
    EXPECT_EQ(loader.Get(i).input_ids, ids[static_cast<size_t>(i % 3)]) << i;
    EXPECT_EQ(loader.Get(i).labels, labels[static_cast<size_t>(i % 3)]) << i;
  }
}

TEST_F(Data, ReadOnceNothingIsLabelledAfterTheEnd) {
  std::ofstream(folder_ / "a.txt") << "01234";
  const DataLoader loader(OpenTokenFiles(folder_, {}), {.sequence = 4, .once = true, .vocabulary = 256});
  EXPECT_EQ(loader.samples_per_epoch(), 2);
  EXPECT_EQ(loader.Get(0).labels, (std::vector<int64_t>{'1', '2', '3', '4'}));
  EXPECT_EQ(loader.Get(1).labels, (std::vector<int64_t>{-100, -100, -100, -100}));
  EXPECT_EQ(loader.Get(7).labels, (std::vector<int64_t>{-100, -100, -100, -100}));
  EXPECT_EQ(loader.Get(7).input_ids, (std::vector<int64_t>{0, 0, 0, 0}));
}

// Sources of one letter each, so that a sample says where it is from and which of its source it is.
class Mixture : public Data {
 protected:
  DataLoader Make(const std::vector<double>& weights) {
    std::vector<DataSource> sources;
    for (size_t s = 0; s < weights.size(); ++s) {
      std::vector<uint32_t> ids(1000);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(1000 * s + i);
      sources.emplace_back().weight = weights[s];
      sources.back().files = OpenTokenFiles(Write<uint32_t>(std::to_string(s) + ".bin", ids), {.format = "u32"});
    }
    return DataLoader(std::move(sources), {.sequence = 1, .shuffle = false, .vocabulary = int64_t{1} << 30});
  }
};

TEST_F(Mixture, KeepsItsProportionsAndEverySourcesOrder) {
  const DataLoader loader = Make({0.5, 1.5, 2});  // 1 : 3 : 4
  std::vector<int64_t> read(3, 0);
  for (int64_t i = 0; i < 3 * DataLoader::kPeriod / 2; ++i) {
    const int64_t id = loader.Get(i).input_ids[0];
    const auto source = static_cast<size_t>(id / 1000);
    ASSERT_EQ(id % 1000, read[source] % 1000) << "sample " << i << ": the next of its source, none left out";
    ++read[source];
    const double n = static_cast<double>(i + 1);
    ASSERT_NEAR(static_cast<double>(read[0]), n / 8, 1) << i;
    ASSERT_NEAR(static_cast<double>(read[1]), n * 3 / 8, 1) << i;
    ASSERT_NEAR(static_cast<double>(read[2]), n / 2, 1) << i;
  }
  EXPECT_EQ(loader.tokens_per_epoch(), 3000);
}

TEST_F(Mixture, ASampleIsAFunctionOfItsIndexOnly_DAT08_DAT10) {
  const DataLoader loader = Make({0.7, 0.3}), again = Make({7, 3});
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 500; ++i) ids.push_back(loader.Get(DataLoader::kPeriod - 250 + i).input_ids[0]);
  for (int64_t i = 499; i >= 0; --i) {
    EXPECT_EQ(again.Get(DataLoader::kPeriod - 250 + i).input_ids[0], ids[static_cast<size_t>(i)]) << i;
  }
}

// DAT-04: three hundred sets; an index of eight bits would end at 255.
TEST_F(Mixture, OfThreeHundredSources_DAT04) {
  const DataLoader loader = Make(std::vector<double>(300, 1.0));
  std::vector<int> read(300, 0);
  for (int64_t i = 0; i < 600; ++i) ++read[static_cast<size_t>(loader.Get(i).input_ids[0] / 1000)];
  for (size_t s = 0; s < read.size(); ++s) EXPECT_NEAR(read[s], 2, 1) << s;
}

TEST_F(Mixture, RefusesWeightsThatMeanNothing) {
  EXPECT_NE(Message([&] { Make({1, 0}); }).find("must be positive"), std::string::npos);
  EXPECT_NE(Message([&] { Make({1, std::nan("")}); }).find("must be positive"), std::string::npos);
  EXPECT_NE(Message([&] { Make({1e9, 1}); }).find("less than one sample in 65536"), std::string::npos);
}

class Jsonl : public Data {
 protected:
  fs::path Lines(const std::string& text) {
    std::ofstream(folder_ / "a.jsonl") << text;
    return folder_ / "a.jsonl";
  }
  std::string Refusal(const std::string& text) {
    return Message([&] { OpenTokenFiles(Lines(text), {}); });
  }
};

TEST_F(Jsonl, APromptIsReadAndNotPredicted) {
  const auto path = Lines("{\"prompt\": [1, 2], \"completion\": [3, 4], \"id\": \"x\"}\n\n{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, -100]}\n{\"input_ids\": [8, 9]}");
  const DataLoader packed(OpenTokenFiles(path, {}), {.sequence = 9, .shuffle = false, .vocabulary = 10});
  EXPECT_EQ(packed.documents(), 3);
  EXPECT_EQ(packed.Get(0).input_ids, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(packed.Get(0).labels, (std::vector<int64_t>{-100, 3, 4, -100, 6, -100, -100, 9, -100}));
  const DataLoader alone(OpenTokenFiles(path, {}), {.sequence = 5, .shuffle = false, .pack = false, .vocabulary = 10});
  EXPECT_EQ(alone.Get(0).input_ids, (std::vector<int64_t>{1, 2, 3, 4, 0}));
  EXPECT_EQ(alone.Get(0).labels, (std::vector<int64_t>{-100, 3, 4, -100, -100}));
  EXPECT_EQ(alone.Get(2).labels, (std::vector<int64_t>{9, -100, -100, -100, -100}));
}

TEST_F(Jsonl, SaysWhichLineIsWrong) {
  EXPECT_NE(Refusal("").find("has no line"), std::string::npos);
  EXPECT_NE(Refusal("\n \n").find("has no line"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1]}\n{\"input_ids\": [1").find("line 2: no JSON object; was the file cut short?"), std::string::npos);
  EXPECT_NE(Refusal("{\"prompt\": \"hi\", \"completion\": [1]}").find("line 1: \"prompt\" is text"), std::string::npos);
  EXPECT_NE(Refusal("{\"prompt\": [1]}").find("no \"completion\""), std::string::npos);
  EXPECT_NE(Refusal("{\"text\": \"hi\"}").find("no \"input_ids\""), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1, -2]}").find("\"input_ids\"[1] is -2"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1, 2.5]}").find("\"input_ids\"[1] is 2.5"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [99999999999]}").find("no token id"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": []}").find("has no token"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1, 2], \"labels\": [2]}").find("1 \"labels\" for 2"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1, 2], \"labels\": [2, -100]}").find("the shift to the next token is made here"), std::string::npos);
  EXPECT_NE(Refusal("{\"prompt\": [1, 2], \"completion\": []}").find("no token is to be predicted"), std::string::npos);
}

TEST_F(Jsonl, RefusesKeysThatItDoesNotRead) {
  for (const char* key : {"loss_weights", "weight", "attention_mask"}) {
    const std::string told = Refusal(StrCat("{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2], \"", key, "\": [0, 1]}"));
    EXPECT_NE(told.find(StrCat("line 2: \"", key, "\" is not read")), std::string::npos) << told;
  }
  EXPECT_NE(Refusal("{\"input_ids\": [1], \"lables\": [1]}").find("unknown key \"lables\"; did you mean \"labels\"?"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1], \"token_type_ids\": [1]}").find("unknown key \"token_type_ids\"; "), std::string::npos);
  EXPECT_NE(Refusal("{\"prompt\": [1], \"completion\": [2], \"input_ids\": [3]}").find("\"input_ids\" beside \"prompt\""), std::string::npos);
  EXPECT_NE(Refusal("{\"prompt\": [1], \"completion\": [2], \"labels\": [3]}").find("\"labels\" beside \"prompt\""), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1], \"input_ids\": [2]}").find("the key \"input_ids\" comes twice"), std::string::npos);
}

// Weight i is of predicting id i; it moves with the label to the position before, over documents and epochs.
TEST_F(Jsonl, WeightsMoveWithTheirLabels) {
  const auto path = Lines("{\"prompt\": [1, 2], \"completion\": [3, 4, 5], \"weights\": [0.5, 0, 2]}\n"
                          "{\"input_ids\": [6, 7, 8], \"labels\": [-100, -100, 8], \"loss_mask\": [9, 0.25, 1e0]}\n");
  const std::vector<int64_t> labels = {-100, 3, -100, 5, -100, -100, 8, -100};
  const std::vector<float> weights = {0, 0.5f, 0, 2, 0, 0, 1, 0};
  const DataLoader packed(OpenTokenFiles(path, {}), {.sequence = 8, .shuffle = false, .isolate = true, .vocabulary = 10});
  EXPECT_TRUE(packed.weighted());
  EXPECT_EQ(packed.Get(5).labels, labels) << "weight 0 is no label";
  EXPECT_EQ(packed.Get(5).weights, weights);
  EXPECT_EQ(packed.Get(5).starts, (std::vector<int64_t>{0, 0, 0, 0, 0, 5, 5, 5}));
  const DataLoader alone(OpenTokenFiles(path, {}), {.sequence = 4, .shuffle = false, .pack = false, .once = true, .vocabulary = 10});
  EXPECT_EQ(alone.Get(0).weights, (std::vector<float>{0, 0.5f, 0, 2}));
  EXPECT_EQ(alone.Get(1).weights, (std::vector<float>(4, 0)));
  EXPECT_EQ(alone.Get(2).weights, (std::vector<float>{0, 1, 0, 0}));
  EXPECT_EQ(alone.Get(3).weights, (std::vector<float>(4, 0))) << "after the end";
}

TEST_F(Jsonl, RefusesWeightsThatWeighNothing) {
  const auto told = [&](const std::string& weights, const char* key = "weights") {
    return Refusal(StrCat("{\"input_ids\": [1, 2, 3], \"weights\": [1, 1, 1]}\n{\"input_ids\": [1, 2, 3], \"", key, "\": ", weights, "}"));
  };
  for (const char* wrong : {"-1", "-1e-30", "NaN", "Infinity", "-Infinity", "1e39", "1e-60", "1e-40", "null", "[1]", "\"1\""}) {
    const std::string error = told(StrCat("[1, 2, ", wrong, "]"));
    EXPECT_NE(error.find("a.jsonl', line 2: \"weights\"[2] is "), std::string::npos) << error;
    EXPECT_NE(error.find("expected a finite float32, not negative"), std::string::npos) << error;
  }
  EXPECT_NE(told("[1, \"1\", 1]").find("\"weights\"[1] is \"1\", a string"), std::string::npos);
  EXPECT_NE(told("[1, NaN, 1]").find("\"weights\"[1] is NaN"), std::string::npos);
  EXPECT_NE(told("[1, 1e999, 1]").find("line 2: no JSON object; was the file cut short? (number overflow parsing '1e999')"), std::string::npos) << told("[1, 1e999, 1]");
  EXPECT_NE(told("0.5").find("\"weights\" is number, expected an array"), std::string::npos);
  EXPECT_NE(told("[1, 2]", "loss_mask").find("2 \"loss_mask\" for 3 \"input_ids\""), std::string::npos);
  EXPECT_NE(told("[1, 2, 3], \"loss_mask\": [1, 1, 1]").find("\"weights\" beside \"loss_mask\""), std::string::npos);
  EXPECT_EQ(told("[0, true, false]"), "");
  EXPECT_NE(Refusal("{\"prompt\": [1, 2], \"completion\": [3], \"weights\": [1, 1, 1]}").find("3 \"weights\" for 1 \"completion\""), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1, 2], \"weights\": [0, 0]}").find("every weight is 0"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1, 2], \"weights\": [1, 1]}\n{\"input_ids\": [1]}").find("line 2: no \"weights\", which the lines before have"), std::string::npos);
  EXPECT_NE(Refusal("{\"input_ids\": [1, 2]}\n{\"input_ids\": [1], \"weights\": [1]}").find("line 2: \"weights\", which the lines before do not have"), std::string::npos);
}

TEST_F(Jsonl, ASourceHasWeightsInAllFilesOrNone) {
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder_ / name) << text; };
  write("a.jsonl", "{\"input_ids\": [1, 2], \"weights\": [1, 0.5]}");
  write("b.jsonl", "{\"input_ids\": [3, 4]}");
  const std::string told = Message([&] { DataLoader(OpenTokenFiles(folder_, {}), {.sequence = 2, .vocabulary = 10}); });
  EXPECT_NE(told.find("b.jsonl' does not weigh its tokens, '"), std::string::npos) << told;
  std::vector<DataSource> sources(2);
  sources[0].files = OpenTokenFiles(folder_ / "a.jsonl", {});
  sources[1].files = OpenTokenFiles(folder_ / "b.jsonl", {});
  const DataLoader mixture(std::move(sources), {.sequence = 2, .vocabulary = 10});
  EXPECT_TRUE(mixture.weighted());
  EXPECT_EQ(mixture.Get(0).weights, (std::vector<float>{0.5f, 0}));
  EXPECT_TRUE(mixture.Get(1).weights.empty()) << "1 each";
}

// What a resumed run would read on in must be the same, down to what is learnt.
TEST_F(Jsonl, OtherLabelsOrWeightsAreOtherData) {
  const auto hash = [&](const char* text) { return DataLoader(OpenTokenFiles(Lines(text), {}), {.sequence = 2, .vocabulary = 10}).hash(); };
  const std::set<uint64_t> hashes = {hash("{\"input_ids\": [1, 2]}"), hash("{\"input_ids\": [1, 2], \"labels\": [-100, 2]}"),
                                     hash("{\"input_ids\": [1, 2], \"weights\": [1, 1]}"), hash("{\"input_ids\": [1, 2], \"weights\": [1, 2]}")};
  EXPECT_EQ(hashes.size(), 4u);
  EXPECT_EQ(hash("{\"input_ids\": [1, 2]}"), hash("{\"input_ids\": [1, 2], \"labels\": [1, 2]}"));
}

TEST_F(Jsonl, PassesNotesOver) {
  const auto path = Lines("{\"id\": 7, \"text\": \"a\", \"source\": \"b\", \"meta\": {\"weights\": 1, \"id\": 2}, \"input_ids\": [1, 2]}");
  EXPECT_EQ(ReadAll(*OpenTokenFiles(path, {})[0]), (std::vector<int64_t>{1, 2}));
}

// DAT-01
TEST_F(Jsonl, NamesTheLineOfAnIdOutsideTheVocabulary_DAT01) {
  const auto files = OpenTokenFiles(Lines("{\"input_ids\": [1, 2]}\n\n{\"prompt\": [3], \"completion\": [4, 50]}\n"), {});
  const std::string message = Message([&] { CheckTokenRange(*files[0], 50); });
  EXPECT_NE(message.find("line 3: token 2 is 50"), std::string::npos) << message;
}

TEST_F(Jsonl, AMillionLines) {
  std::string text;
  for (int i = 0; i < 1000000; ++i) text += "{\"input_ids\":[1,2]}\n";
  EXPECT_EQ(OpenTokenFiles(Lines(text), {})[0]->document_starts().size(), 1000001u);
}

TEST(Random, NormalHasTheRightMomentsAndIsAFunctionOfTheElement) {
  std::vector<float> values(100001), part(100);
  FillNormal(values, 0, "w", 42, 0.5, 2.0);
  double sum = 0, square = 0;
  for (const float v : values) sum += v, square += static_cast<double>(v) * v;
  const double n = static_cast<double>(values.size()), mean = sum / n;
  EXPECT_NEAR(mean, 0.5, 5 * 2 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(square / n - mean * mean), 2.0, 5 * 2 / std::sqrt(2 * n));
  FillNormal(part, 777, "w", 42, 0.5, 2.0);
  for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], values[777 + i]);
  FillNormal(part, 777, "v", 42, 0.5, 2.0);
  EXPECT_NE(part[0], values[777]);
}

// Two documents of 3, one of 2, in rows of 4: each position knows where its document begins in its row.
TEST_F(Data, SaysWhereDocumentsBegin) {
  std::ofstream(folder_ / "a.jsonl") << "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5, 6]}\n{\"input_ids\": [7, 8]}\n";
  const auto open = [&](bool isolate, bool once) {
    return DataLoader(OpenTokenFiles(folder_ / "a.jsonl", {}), {.sequence = 4, .shuffle = false, .isolate = isolate, .once = once, .vocabulary = 10});
  };
  const DataLoader loader = open(true, false);
  EXPECT_EQ(loader.Get(0).input_ids, (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(loader.Get(0).starts, (std::vector<int64_t>{0, 0, 0, 3}));
  EXPECT_EQ(loader.Get(1).starts, (std::vector<int64_t>{0, 0, 2, 2})) << "5 6 go on, 7 8 begin";
  EXPECT_EQ(loader.Get(1).labels, (std::vector<int64_t>{6, -100, 8, -100}));
  EXPECT_TRUE(open(false, false).Get(0).starts.empty());
  const DataLoader held_out = open(true, true);
  EXPECT_EQ(held_out.Get(2).starts, (std::vector<int64_t>{0, 0, 0, 0})) << "nothing is left";
}

}  // namespace
}  // namespace weir
