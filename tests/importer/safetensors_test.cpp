#include "importer/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "graph/error.h"
#include "tests/importer/model_builder.h"

namespace weir {
namespace {

std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string ReadError(const TempFolder& folder, const std::string& bytes) {
  WriteFile(folder / "t.safetensors", bytes);
  return ErrorOf([&] { ReadSafetensors(folder / "t.safetensors"); });
}

TEST(Safetensors, ReadsEveryFieldAsStored) {
  TempFolder folder;
  WriteFile(folder / "t.safetensors",
            FileOf(R"({"__metadata__":{"format":"pt"},)"
                   R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
                   R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})",
                   FloatBytes({1.5f, -2}) + std::string("\x80\x3e\x00\xc0", 4)));
  const Safetensors read = ReadSafetensors(folder / "t.safetensors");
  EXPECT_EQ(read.metadata.at("format"), "pt");
  EXPECT_EQ(read.tensors.at("a")->AsFloats(), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(read.tensors.at("a")->dims(), (Dims{2, 1}));
  EXPECT_EQ(read.tensors.at("b")->AsFloats(), (std::vector<float>{0.25f, -2}));
}

TEST(Safetensors, RefusesBrokenHeaders) {
  TempFolder folder;
  const std::string eight(8, '\0');
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_NE(ReadError(folder, "1234"), "");
  EXPECT_NE(ReadError(folder, std::string(7, '\xff') + '\x7f' + "{}"), "");
  EXPECT_NE(ReadError(folder, FileOf("[]", "")), "");
  EXPECT_NE(ReadError(folder, FileOf("{", "")), "");
  EXPECT_EQ(ReadError(folder, FileOf("{" + a + "}", eight)), "");
  // one byte short, one byte over
  EXPECT_NE(ReadError(folder, FileOf("{" + a + "}", eight.substr(1))), "");
  EXPECT_NE(ReadError(folder, FileOf("{" + a + "}", eight + "x")), "");
  EXPECT_NE(ReadError(folder, FileOf("{" + a + "," + a + "}", eight)).find("'a' is given twice"),
            std::string::npos);
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& range) {
    return "\"b\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + range +
           "}";
  };
  const auto broken = [&](const std::string& text) {
    return ReadError(folder, FileOf("{" + a + "," + text + "}", eight + eight));
  };
  EXPECT_EQ(broken(entry("F32", "[2]", "[8,16]")), "");
  EXPECT_NE(broken(entry("F32", "[2]", "[4,12]")).find("'b'"), std::string::npos);  // overlap
  EXPECT_NE(broken(entry("F32", "[1]", "[12,16]")), "");                            // gap
  EXPECT_NE(broken(entry("F32", "[3]", "[8,16]")), "");                             // size
  EXPECT_NE(broken(entry("F32", "[2]", "[16,8]")), "");
  EXPECT_NE(broken(entry("F32", "[2]", "[-8,0]")), "");
  EXPECT_NE(broken(entry("F32", "[-1,-2]", "[8,16]")), "");
  EXPECT_NE(broken(entry("F32", "[4294967296,4294967296]", "[8,16]")), "");
  EXPECT_NE(broken(entry("F8_E4M3", "[8]", "[8,16]")).find("F8_E4M3"), std::string::npos);
  EXPECT_NE(broken("\"b\":3"), "");
}

TEST(Safetensors, WritesWhatItReads) {
  TempFolder folder;
  const auto path = folder / "t.safetensors";
  WriteSafetensors(path,
                   {{"w", TensorData::FromFloats({2, 2}, {1, 2, 3, 4})},
                    {"empty", TensorData::FromFloats({0, 7}, {})},
                    {"ids", TensorData::FromInts({}, {-5})}},
                   {{"step", "7"}});
  const std::string bytes = ReadFile(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const Safetensors read = ReadSafetensors(path);
  EXPECT_EQ(read.metadata.at("step"), "7");
  EXPECT_EQ(read.tensors.at("w")->AsFloats(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(read.tensors.at("empty")->dims(), (Dims{0, 7}));
  EXPECT_EQ(read.tensors.at("ids")->AsInts(), (std::vector<int64_t>{-5}));
}

TEST(Safetensors, FailedWriteLeavesTheOldFile) {
  TempFolder folder;
  const auto path = folder / "t.safetensors";
  WriteSafetensors(path, {{"w", TensorData::FromFloats({1}, {1})}});
  const auto int4 = TensorData::Owned(DType::kInt4, {2}, std::vector<std::byte>(1));
  EXPECT_NE(ErrorOf([&] { WriteSafetensors(path, {{"w", int4}}); }), "");
  EXPECT_NE(ErrorOf([&] { WriteSafetensors(path, {{"w", nullptr}}); }), "");
  EXPECT_EQ(ReadSafetensors(path).tensors.at("w")->AsFloats(), (std::vector<float>{1}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_NE(ErrorOf([&] { WriteSafetensors(folder / "no" / "t.safetensors", {}); }), "");
}

TEST(Safetensors, ReadsShards) {
  TempFolder folder;
  WriteSafetensors(folder / "s-1", {{"a", TensorData::FromFloats({1}, {1})}});
  WriteSafetensors(folder / "s-2", {{"b", TensorData::FromFloats({1}, {2})}});
  const auto index = folder / "m.safetensors.index.json";
  WriteFile(index, R"({"metadata":{},"weight_map":{"a":"s-1","b":"s-2"}})");
  EXPECT_EQ(ReadSafetensors(index).tensors.at("b")->AsFloats(), (std::vector<float>{2}));
  WriteFile(index, R"({"weight_map":{"a":"s-1","b":"s-1"}})");
  EXPECT_NE(ErrorOf([&] { ReadSafetensors(index); }).find("'b'"), std::string::npos);
  WriteFile(index, R"({"weight_map":{"a":"s-3"}})");
  EXPECT_NE(ErrorOf([&] { ReadSafetensors(index); }).find("s-3"), std::string::npos);
  WriteFile(index, R"({"weight_map":{"a":"../s-1"}})");
  EXPECT_NE(ErrorOf([&] { ReadSafetensors(index); }).find("../s-1"), std::string::npos);
}

TEST(Safetensors, ReadsTheStoredModels) {
  const auto path = WEIR_SOURCE_DIR "/models/mixtral/weights.safetensors";
  const Safetensors read = ReadSafetensors(path);
  EXPECT_EQ(read.tensors.at("model.embed_tokens.weight")->dims(), (Dims{307, 64}));
}

}  // namespace
}  // namespace weir
