// Data files that change while they are read, and the shapes of arrays.
#include <gtest/gtest.h>

#include "tests/optim/data_folder.h"

namespace weir {
namespace {

class TokenFiles : public Data {
 protected:
  fs::path WriteNpy(const std::string& name, const std::string& shape, int64_t count) {
    std::string text = "{'descr': '<u2', 'fortran_order': False, 'shape': (" + shape + "), }";
    text += std::string(63 - (10 + text.size()) % 64, ' ') + "\n";
    const std::string prefix = std::string("\x93NUMPY\x01", 7) + '\0' + static_cast<char>(text.size()) + '\0';
    return Write(name, Iota<uint16_t>(count), prefix + text);
  }
};

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

}  // namespace
}  // namespace weir
