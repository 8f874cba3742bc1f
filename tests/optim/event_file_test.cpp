// Event files, decoded by hand.
#include "optim/event_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "graph/error.h"
#include "optim/trainer.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// The messages of a TFRecord file; checks every checksum.
std::vector<std::string> Records(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto unmask = [](uint32_t masked) { return std::rotl(masked - 0xa282ead8u, 15); };
  const auto word = [&](size_t at) {
    uint32_t value;
    std::memcpy(&value, bytes.data() + at, 4);
    return value;
  };
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size();) {
    EXPECT_EQ(unmask(word(at + 8)), Crc32c(bytes.substr(at, 8)));
    const size_t length = word(at);
    records.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(unmask(word(at + 12 + length)), Crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

// Fields of a message: number -> bytes (of a fixed or length-delimited field) or a varint as text.
std::multimap<int, std::string> Fields(const std::string& message) {
  std::multimap<int, std::string> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message.at(at++));
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t tag = varint(), wire = tag & 7;
    if (wire == 0) {
      fields.emplace(tag >> 3, std::to_string(varint()));
      continue;
    }
    const size_t length = wire == 1 ? 8 : wire == 5 ? 4 : varint();
    fields.emplace(tag >> 3, message.substr(at, length));
    at += length;
  }
  return fields;
}

template <class T>
T As(const std::string& bytes) {
  T value{};
  EXPECT_EQ(bytes.size(), sizeof(T));
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

class EventFileTest : public testing::Test {
 protected:
  fs::path folder_ = fs::temp_directory_path() / ("weir_events_" + std::to_string(getpid()));
  void TearDown() override { fs::remove_all(folder_); }
};

TEST_F(EventFileTest, Crc32cIsCastagnolis) {  // RFC 3720, appendix B.4
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST_F(EventFileTest, HoldsStepTimeTagsAndValues) {
  EventFile file(folder_, 1700000000.5);
  file.Write(300, 1700000001.25, {{"train/loss", 2.5}, {"eval/a", -1e30}});
  const auto records = Records(file.path());
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(Fields(records[0]).find(3)->second, "brain.Event:2");
  EXPECT_EQ(As<double>(Fields(records[0]).find(1)->second), 1700000000.5);
  const auto event = Fields(records[1]);
  EXPECT_EQ(As<double>(event.find(1)->second), 1700000001.25);
  EXPECT_EQ(event.find(2)->second, "300");
  std::map<std::string, float> values;
  for (const auto& [field, bytes] : Fields(event.find(5)->second)) {
    const auto value = Fields(bytes);
    values[value.find(1)->second] = As<float>(value.find(2)->second);
  }
  EXPECT_EQ(values, (std::map<std::string, float>{{"train/loss", 2.5f}, {"eval/a", -1e30f}}));
}

TEST_F(EventFileTest, OneFileAtATime) {
  EventFile(folder_, 1).Write(1, 1, {{"a", 1}});
  const EventFile second(folder_, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  EXPECT_EQ(Records(second.path()).size(), 1u);
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(EventFile(folder_ / "file", 3), Error);
}

}  // namespace
}  // namespace weir
