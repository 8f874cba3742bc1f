#include "importer/external_data.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "importer/importer.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using Entries = std::vector<std::pair<std::string, std::string>>;

// A model in `folder` whose tensor w of four floats has these external_data entries.
std::unique_ptr<Graph> ReadWith(const fs::path& model, const Entries& entries,
                                std::vector<int64_t> dims = {4}) {
  ModelBuilder b;
  b.External("w", dims, entries);
  return b.Read(model);
}

std::string ErrorWith(const fs::path& model, const Entries& entries,
                      std::vector<int64_t> dims = {4}) {
  return ErrorOf([&] { ReadWith(model, entries, dims); });
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// IMP-01
TEST(ExternalData, LocationsOutsideTheFolderAreRefusedBeforeOpening) {
  TempFolder folder;
  fs::create_directories(folder / "m" / "sub");
  const fs::path model = folder.path() / "m" / "m.onnx";
  const std::string bytes = FloatBytes({1, 2, 3, 4});
  WriteFile(folder / "w.bin", bytes);
  WriteFile(folder.path() / "m" / "a..b.bin", bytes);
  WriteFile(folder.path() / "m" / "sub" / "w.bin", bytes);
  const std::vector<std::string> refused = {
      "../w.bin", "a/../../w.bin", "sub/../a..b.bin", (folder / "w.bin").string(), "", ".", "..",
      "sub/",     "sub//w.bin",    "./a..b.bin"};
  for (const std::string& location : refused) {
    const std::string error = ErrorWith(model, {{"location", location}});
    EXPECT_TRUE(Has(error, "InvalidModel") && Has(error, "initializer 'w'")) << location << "\n"
                                                                             << error;
  }
  EXPECT_TRUE(Has(ErrorWith(model, {}), "initializer 'w'"));
  for (const std::string location : {"sub/w.bin", "a..b.bin"}) {
    const auto graph = ReadWith(model, {{"location", location}});
    EXPECT_EQ(graph->initializers.at("w")->AsFloats(), (std::vector<float>{1, 2, 3, 4}));
  }
}

TEST(ExternalData, SymlinksMayNotLeaveTheFolder) {
  TempFolder folder;
  fs::create_directories(folder / "m");
  WriteFile(folder / "secret", FloatBytes({1, 2, 3, 4}));
  fs::create_symlink("../secret", folder.path() / "m" / "w.bin");
  fs::create_symlink("..", folder.path() / "m" / "up");
  const fs::path model = folder.path() / "m" / "m.onnx";
  EXPECT_TRUE(Has(ErrorWith(model, {{"location", "w.bin"}}), "outside the folder"));
  EXPECT_TRUE(Has(ErrorWith(model, {{"location", "up/secret"}}), "outside the folder"));
}

TEST(ExternalData, CachesOfSymlinksIntoOneFolderWork) {
  TempFolder folder;
  fs::create_directories(folder / "blobs");
  fs::create_directories(folder.path() / "snapshots" / "x" / "onnx");
  WriteFile(folder.path() / "blobs" / "d1", FloatBytes({1, 2, 3, 4}));
  ModelBuilder b;
  b.External("w", {4}, {{"location", "model.onnx_data"}});
  b.Save(folder.path() / "blobs" / "m1");
  const fs::path snapshot = folder.path() / "snapshots" / "x" / "onnx";
  fs::create_symlink("../../../blobs/m1", snapshot / "model.onnx");
  fs::create_symlink("../../../blobs/d1", snapshot / "model.onnx_data");
  const auto graph = ReadOnnx(snapshot / "model.onnx");
  EXPECT_EQ(graph->initializers.at("w")->AsFloats(), (std::vector<float>{1, 2, 3, 4}));
}

TEST(ExternalData, DataBesideTheTargetOfAModelSymlinkIsFound) {
  TempFolder folder;
  fs::create_directories(folder / "real");
  WriteFile(folder.path() / "real" / "w.bin", FloatBytes({1, 2, 3, 4}));
  ModelBuilder b;
  b.External("w", {4}, {{"location", "w.bin"}});
  b.Save(folder.path() / "real" / "m.onnx");
  fs::create_symlink("real/m.onnx", folder / "link.onnx");
  EXPECT_NE(ReadOnnx(folder / "link.onnx")->initializers.at("w"), nullptr);
}

// IMP-04
TEST(ExternalData, KeysAndSizesAreCheckedBeforeAnythingIsAllocated) {
  TempFolder folder;
  const fs::path model = folder / "m.onnx";
  WriteFile(folder / "w.bin", FloatBytes({1, 2, 3, 4}));
  EXPECT_TRUE(Has(ErrorWith(model, {{"location", "w.bin"}, {"foo", "1"}}), "'foo'"));
  const std::string huge = std::to_string(uint64_t{1} << 62);
  EXPECT_TRUE(Has(ErrorWith(model, {{"location", "w.bin"}, {"length", huge}}), huge));
  EXPECT_TRUE(Has(ErrorWith(model, {{"location", "w.bin"}}, {int64_t{1} << 57}), "has 16 bytes"));
  for (const std::string number : {"", "-1", "1x", "0x10", " 1", "99999999999999999999"}) {
    EXPECT_TRUE(Has(ErrorWith(model, {{"location", "w.bin"}, {"offset", number}}), "'offset'"));
  }
  EXPECT_EQ(ErrorWith(model, {{"location", "w.bin"}, {"checksum", "abc"}}), "");
}

// IMP-05
TEST(ExternalData, OffsetPlusLengthCannotWrap) {
  TempFolder folder;
  const fs::path model = folder / "m.onnx";
  WriteFile(folder / "w.bin", std::string(64, '\0'));
  const auto at = [&](const std::string& offset) {
    return ErrorWith(model, {{"location", "w.bin"}, {"offset", offset}, {"length", "16"}});
  };
  EXPECT_NE(at("18446744073709551608"), "");
  EXPECT_EQ(at("48"), "");
  EXPECT_NE(at("49"), "");
}

// IMP-11
TEST(ExternalData, OffsetsBeyondFourGibibytesWork) {
  TempFolder folder;
  const int64_t offset = (int64_t{1} << 32) + 12345;  // unaligned too
  {
    std::ofstream file(folder / "w.bin", std::ios::binary);
    file.seekp(offset);
    file << FloatBytes({1, 2, 3, 4});
  }
  fs::resize_file(folder / "w.bin", 5000000000);
  struct stat info {};
  ASSERT_EQ(::stat((folder / "w.bin").c_str(), &info), 0);
  if (info.st_blocks > 1000000) GTEST_SKIP() << "this file system has no sparse files";
  const auto graph =
      ReadWith(folder / "m.onnx",
               {{"location", "w.bin"}, {"offset", std::to_string(offset)}, {"length", "16"}});
  EXPECT_EQ(graph->initializers.at("w")->AsFloats(), (std::vector<float>{1, 2, 3, 4}));
}

// IMP-14
TEST(ExternalData, ShortFilesAreNamedWithBothSizes) {
  TempFolder folder;
  WriteFile(folder / "w.bin", std::string(63, '\0'));
  const std::string error =
      ErrorWith(folder / "m.onnx", {{"location", "w.bin"}, {"offset", "48"}, {"length", "16"}});
  EXPECT_TRUE(Has(error, "16 bytes at offset 48") && Has(error, "has 63 bytes")) << error;
}

TEST(ExternalData, LengthMustMatchTheShape) {
  TempFolder folder;
  WriteFile(folder / "w.bin", std::string(64, '\0'));
  EXPECT_NE(ErrorWith(folder / "m.onnx", {{"location", "w.bin"}, {"length", "20"}}), "");
  EXPECT_EQ(ErrorWith(folder / "m.onnx", {{"location", "w.bin"}}), "");  // to the end of the file
  EXPECT_EQ(ErrorWith(folder / "m.onnx", {{"location", "w.bin"}, {"length", "0"}}, {0, 7}), "");
}

TEST(ExternalData, OneMappingServesAllTensorsOfAFile) {
  TempFolder folder;
  WriteFile(folder / "w.bin", FloatBytes({1, 2, 3, 4}));
  ModelBuilder b;
  b.External("a", {2}, {{"location", "w.bin"}});
  b.External("b", {2}, {{"location", "w.bin"}, {"offset", "8"}});
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->initializers.at("b")->bytes().data(),
            graph->initializers.at("a")->bytes().data() + 8);
}

TEST(ExternalData, MissingFilesLeaveShapesAndOneNotice) {
  TempFolder folder;
  ModelBuilder b;
  b.External("a", {2, 3}, {{"location", "gone.bin"}});
  b.External("b", {2}, {{"location", "gone.bin"}, {"offset", "24"}});
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->initializers.at("a"), nullptr);
  EXPECT_EQ(ToString(graph->FindValue("a")->shape), "[2,3]");
  EXPECT_EQ(graph->FindValue("a")->dtype, DType::kFloat32);
  ASSERT_EQ(graph->notices.size(), 1u);
  EXPECT_TRUE(Has(graph->notices[0], "gone.bin") && Has(graph->notices[0], "2 tensors"));
}

TEST(ExternalData, PipesAndFoldersAreNoDataFiles) {
  TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(Has(ErrorWith(folder / "m.onnx", {{"location", "pipe"}}), "regular file"));
  fs::create_directories(folder / "d");
  EXPECT_TRUE(Has(ErrorWith(folder / "m.onnx", {{"location", "d"}}), "regular file"));
}

TEST(ExternalData, ConstantNodesMayBeExternalToo) {
  TempFolder folder;
  WriteFile(folder / "w.bin", FloatBytes({5, 6}));
  ModelBuilder b;
  onnx::TensorProto& tensor =
      SetTensor(b.Op("Constant", {}, {"c"}), "value", onnx::TensorProto::FLOAT, {2});
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  auto* entry = tensor.add_external_data();
  entry->set_key("location");
  entry->set_value("w.bin");
  b.Output("c");
  const auto graph = b.Read(folder / "m.onnx");
  EXPECT_EQ(graph->initializers.at("c")->AsFloats(), (std::vector<float>{5, 6}));
  EXPECT_EQ(graph->outputs.at(0)->role, Role::kConstant);
}

}  // namespace
}  // namespace weir
