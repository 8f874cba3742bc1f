#include "optim/event_file.h"

#include <array>
#include <bit>
#include <cstring>

#include "graph/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
constexpr const char* kPrefix = "events.out.tfevents.";

template <class T>
std::string LittleEndian(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// Protobuf wire format: a tag of field number and wire type, then the value.
std::string Tag(int field, int wire) { return Varint(static_cast<uint64_t>(field << 3 | wire)); }
std::string DoubleField(int field, double value) { return Tag(field, 1) + LittleEndian(value); }
std::string IntField(int field, int64_t value) { return Tag(field, 0) + Varint(static_cast<uint64_t>(value)); }
std::string FloatField(int field, float value) { return Tag(field, 5) + LittleEndian(value); }
std::string BytesField(int field, const std::string& bytes) { return Tag(field, 2) + Varint(bytes.size()) + bytes; }

uint32_t MaskedCrc(const std::string& bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8u; }

}  // namespace

uint32_t Crc32c(const std::string& bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> entries{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
      entries[i] = crc;
    }
    return entries;
  }();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

EventFile::EventFile(const fs::path& folder, double wall_time) {
  std::error_code error;
  fs::create_directories(folder, error);
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with(kPrefix)) old.push_back(entry.path());
  }
  for (const fs::path& path : old) fs::remove(path, error);
  path_ = folder / StrCat(kPrefix, static_cast<int64_t>(wall_time), ".weir");
  out_.open(path_, std::ios::binary);
  WriteRecord(DoubleField(1, wall_time) + BytesField(3, "brain.Event:2"));
}

void EventFile::Write(int64_t step, double wall_time, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += BytesField(1, BytesField(1, tag) + FloatField(2, static_cast<float>(value)));
  }
  WriteRecord(DoubleField(1, wall_time) + IntField(2, step) + BytesField(5, summary));
}

void EventFile::WriteRecord(const std::string& event) {
  const std::string length = LittleEndian(uint64_t{event.size()});
  out_ << length << LittleEndian(MaskedCrc(length)) << event << LittleEndian(MaskedCrc(event)) << std::flush;
  WEIR_CHECK(out_.good(), ErrorCode::kIoError, "cannot write '", path_.string(), "'; check the folder and free space");
}

}  // namespace weir
