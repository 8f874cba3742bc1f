// Formats of data files, and files that change while they are read: DAT rows of public reports, by id where one applies.
#include <gtest/gtest.h>

#include "tests/optim/data_folder.h"

namespace weir {
namespace {

// The magic, version 1.0 and the padded header of a .npy.
std::string NpyPrefix(std::string header) {
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string prefix = "\x93NUMPY\x01";
  prefix += '\0';
  prefix += static_cast<char>(header.size() & 0xff);
  prefix += static_cast<char>(header.size() >> 8);
  return prefix + header;
}

class TokenFiles : public Data {
 protected:
  fs::path WriteNpy(const std::string& name, const std::string& shape, int64_t count) {
    return Write(name, Iota<uint16_t>(count), NpyPrefix("{'descr': '<u2', 'fortran_order': False, 'shape': (" + shape + "), }"));
  }
};

// DAT-02: the width of a file without a header is given, never guessed.
TEST_F(TokenFiles, ReadsHeaderlessBinOnlyWhenTheWidthIsGiven_DAT02) {
  const auto path = Write<uint16_t>("a.bin", {1, 2, 65535});
  EXPECT_NE(Message([&] { OpenTokenFiles(path, {}); }).find("--data-format u16 or u32"), std::string::npos);
  EXPECT_EQ(ReadAll(*OpenTokenFiles(path, {.format = "u16"})[0]), (std::vector<int64_t>{1, 2, 65535}));
  const auto wide = Write<uint32_t>("b.bin", {1, 70000, 3});
  EXPECT_EQ(ReadAll(*OpenTokenFiles(wide, {.format = "u32"})[0]), (std::vector<int64_t>{1, 70000, 3}));
}

// DAT-02: every other number is 0.
TEST_F(TokenFiles, RefusesAU32FileReadAsU16_DAT02) {
  const auto path = Write<uint32_t>("a.bin", Iota<uint32_t>(200));
  EXPECT_NE(Message([&] { OpenTokenFiles(path, {.format = "u16"}); }).find("looks like a u32 file"),
            std::string::npos);
}

// DAT-02
TEST_F(TokenFiles, RefusesAnOddByteCount_DAT02) {
  const auto path = Write<uint8_t>("a.bin", {1, 0, 2});
  EXPECT_NE(Message([&] { OpenTokenFiles(path, {.format = "u16"}); }).find("not a multiple of 2"),
            std::string::npos);
}

TEST_F(TokenFiles, ReadsLlmcHeaderAndChecksItsCount) {
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 3;
  std::string prefix(reinterpret_cast<const char*>(header.data()), 1024);
  EXPECT_EQ(ReadAll(*OpenTokenFiles(Write<uint16_t>("a.bin", {7, 8, 9}, prefix), {})[0]),
            (std::vector<int64_t>{7, 8, 9}));
  EXPECT_NE(Message([&] { OpenTokenFiles(Write<uint16_t>("b.bin", {7, 8}, prefix), {}); }).find("header says 3"),
            std::string::npos);
}

TEST_F(TokenFiles, ReadsNpyOfEveryIntegerWidth) {
  const auto header = [](const std::string& descr, int64_t count) {
    return NpyPrefix("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + std::to_string(count) + ",), }");
  };
  EXPECT_EQ(ReadAll(*OpenTokenFiles(Write<int64_t>("a.npy", {5, 6}, header("<i8", 2)), {})[0]),
            (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(ReadAll(*OpenTokenFiles(Write<uint16_t>("b.npy", {5, 6}, header("<u2", 2)), {})[0]),
            (std::vector<int64_t>{5, 6}));
  EXPECT_NE(Message([&] { OpenTokenFiles(Write<float>("c.npy", {5, 6}, header("<f4", 2)), {}); }).find("<f4"),
            std::string::npos);
}

TEST_F(TokenFiles, ReadsMegatronIndexWithDocuments) {
  Write<uint16_t>("m.bin", {1, 2, 3, 4, 5});
  std::string index = "MMIDIDX";
  const auto put = [&index](auto value) { index.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  index += std::string(2, '\0');
  put(int64_t{1});
  put(uint8_t{8});
  put(int64_t{2});
  put(int64_t{3});
  put(int32_t{2}), put(int32_t{3});
  put(int64_t{0}), put(int64_t{4});
  put(int64_t{0}), put(int64_t{1}), put(int64_t{2});
  std::ofstream(folder_ / "m.idx", std::ios::binary) << index;
  const auto files = OpenTokenFiles(folder_ / "m.bin", {});
  EXPECT_EQ(ReadAll(*files[0]), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(files[0]->document_starts(), (std::vector<int64_t>{0, 2, 5}));
}

TEST_F(TokenFiles, RefusesAShortOrTransposedNpy) {
  const auto header = [](const std::string& order, const std::string& shape) {
    return NpyPrefix("{'descr': '<u2', 'fortran_order': " + order + ", 'shape': (" + shape + "), }");
  };
  const auto open = [&](const std::string& prefix) {
    return Message([&] { OpenTokenFiles(Write<uint16_t>("a.npy", {1, 2, 3, 4}, prefix), {}); });
  };
  EXPECT_EQ(open(header("False", "2, 2")), "");
  EXPECT_NE(open(header("False", "5,")).find("header says 5 tokens, file holds 4"), std::string::npos);
  EXPECT_NE(open(header("True", "2, 2")).find("Fortran order"), std::string::npos);
}

TEST_F(TokenFiles, RefusesAMegatronIndexThatRunsBackwards) {
  Write<uint16_t>("m.bin", {1, 2, 3, 4, 5});
  std::string index = "MMIDIDX";
  const auto put = [&index](auto value) { index.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  index += std::string(2, '\0');
  put(int64_t{1}), put(uint8_t{8}), put(int64_t{3}), put(int64_t{2});
  put(int32_t{6}), put(int32_t{-2}), put(int32_t{1});
  put(int64_t{0}), put(int64_t{12}), put(int64_t{8});
  put(int64_t{0}), put(int64_t{3});
  std::ofstream(folder_ / "m.idx", std::ios::binary) << index;
  EXPECT_NE(Message([&] { OpenTokenFiles(folder_ / "m.bin", {}); }).find("sequence 1 has length -2"), std::string::npos);
}

TEST_F(TokenFiles, RefusesAnUnknownLlmcVersion) {
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 9, header[2] = 1;
  const std::string prefix(reinterpret_cast<const char*>(header.data()), 1024);
  EXPECT_NE(Message([&] { OpenTokenFiles(Write<uint16_t>("a.bin", {7}, prefix), {}); }).find("version 9"), std::string::npos);
}

// What is appended to a file while a run reads it belongs to the next run.
TEST_F(TokenFiles, AFileThatGrowsKeepsTheLengthThatItHad) {
  const auto path = Write<uint16_t>("a.bin", {1, 2, 3});
  const auto files = OpenTokenFiles(path, {.format = "u16"});
  std::ofstream(path, std::ios::binary | std::ios::app) << std::string(100000, 'x');
  EXPECT_EQ(files[0]->tokens(), 3);
  EXPECT_EQ(ReadAll(*files[0]), (std::vector<int64_t>{1, 2, 3}));
}

// A mapped file would answer zeros up to the end of its page, and a signal beyond.
TEST_F(TokenFiles, AFileThatIsCutIsToldWithItsSizes) {
  const auto path = Write<uint16_t>("a.bin", Iota<uint16_t>(20000));
  const auto file = std::move(OpenTokenFiles(path, {.format = "u16"})[0]);
  fs::resize_file(path, 10001);
  std::vector<int64_t> ids(3);
  file->Read(4997, ids);
  EXPECT_EQ(ids, (std::vector<int64_t>{4997, 4998, 4999}));
  for (const int64_t first : {4998, 5000, 19000}) {
    const std::string text = Message([&] { file->Read(first, ids); });
    EXPECT_NE(text.find("IoError: data file '" + path.string() + "' was cut short while it was read: it had 40000 bytes when it was opened"), std::string::npos) << text;
  }
}

// More files than are held open: the last ones are opened for each read.
TEST_F(TokenFiles, OfAThousandFilesNoneMayBeCutOrReplaced) {
  for (int i = 0; i < 1200; ++i) Write<char>(StrCat(1000 + i, ".txt"), {static_cast<char>(i % 100), 'x'});
  const auto files = OpenTokenFiles(folder_, {});
  ASSERT_EQ(files.size(), 1200u);
  for (const int i : {0, 1199}) {
    EXPECT_EQ(ReadAll(*files[static_cast<size_t>(i)]), (std::vector<int64_t>{i % 100, 'x'}));
    fs::resize_file(files[static_cast<size_t>(i)]->path(), 1);
    EXPECT_NE(Message([&] { ReadAll(*files[static_cast<size_t>(i)]); }).find("was cut short"), std::string::npos);
  }
  Write<char>("other", {'a', 'b', 'c'});
  fs::rename(folder_ / "other", files[1198]->path());
  EXPECT_NE(Message([&] { ReadAll(*files[1198]); }).find("was replaced by another one"), std::string::npos);
}

TEST_F(TokenFiles, RowsOfAnArrayAreDocuments) {
  const auto file = std::move(OpenTokenFiles(WriteNpy("a.npy", "3, 4", 12), {})[0]);
  EXPECT_EQ(file->document_starts(), (std::vector<int64_t>{0, 4, 8, 12}));
  EXPECT_EQ(ReadAll(*file), Iota<int64_t>(12));
  EXPECT_EQ(OpenTokenFiles(WriteNpy("b.npy", "12,", 12), {})[0]->document_starts(), (std::vector<int64_t>{0, 12}));
  for (const char* shape : {"2, 3, 2", ""}) {
    const std::string text = Message([&] { OpenTokenFiles(WriteNpy("c.npy", shape, shape[0] == 0 ? 1 : 12), {}); });
    EXPECT_NE(text.find(StrCat("shape (", shape, "); expected one dimension (tokens) or two (each row a document)")), std::string::npos) << text;
  }
}

// Hugging Face calls lines of ids train.json; a source tree's .json is text.
TEST_F(TokenFiles, JsonIsNeitherIdsNorTextUntilItIsSaid) {
  const fs::path path = folder_ / "one/train.json";
  fs::create_directories(path.parent_path());
  std::ofstream(path) << "{\"id\": 7, \"input_ids\": [3, 4, 5]}\n";
  const std::string told = Message([&] { OpenTokenFiles(path, {}); });
  EXPECT_NE(told.find("train.json': .json may be token ids or text; give --data-format jsonl"), std::string::npos) << told;
  EXPECT_EQ(ReadAll(*OpenTokenFiles(path, {.format = "jsonl"})[0]), (std::vector<int64_t>{3, 4, 5}));
  EXPECT_EQ(OpenTokenFiles(path, {.format = "text"})[0]->tokens(), 34);
  const std::string below = Message([&] { OpenTokenFiles(path.parent_path(), {}); });
  EXPECT_NE(below.find("looks like token ids"), std::string::npos) << below;
  std::ofstream(path) << "{\n  \"input_ids\": [3]\n}\n";
  EXPECT_TRUE(OpenTokenFiles(path.parent_path(), {}).at(0)->is_text());
}

TEST_F(TokenFiles, AFolderOfIdsAndTextIsRefused) {
  fs::create_directories(folder_ / "mixed");
  std::ofstream(folder_ / "mixed/README.md") << "words";
  EXPECT_TRUE(OpenTokenFiles(folder_ / "mixed", {}).at(0)->is_text());
  std::ofstream(folder_ / "mixed/tokens.jsonl") << "{\"input_ids\": [1, 2]}\n";
  const std::string told = Message([&] { OpenTokenFiles(folder_ / "mixed", {}); });
  EXPECT_NE(told.find("holds both token ids and text"), std::string::npos) << told;
  EXPECT_NE(told.find("README.md' and '"), std::string::npos) << told;
  EXPECT_EQ(OpenTokenFiles(folder_ / "mixed", {.format = "text"}).size(), 2u) << "as it was asked for";
}

}  // namespace
}  // namespace weir
