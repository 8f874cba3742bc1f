#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace weir {

// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), as TFRecord files check their records with.
uint32_t Crc32c(const std::string& bytes);

// A TensorBoard event file: TFRecords (length, its masked CRC-32C, data, its masked CRC-32C) of Event messages
// { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5 }, whose
// Summary { repeated Value { string tag = 1; float simple_value = 2 } value = 1 } holds scalars.
class EventFile {
 public:
  // A new file in `folder`, under the name that TensorBoard looks for; other event files there are removed.
  EventFile(const std::filesystem::path& folder, double wall_time);
  // Flushed; throws IoError when the disk refuses.
  void Write(int64_t step, double wall_time, const std::vector<std::pair<std::string, double>>& scalars);
  const std::filesystem::path& path() const { return path_; }

 private:
  void WriteRecord(const std::string& event);
  std::filesystem::path path_;
  std::ofstream out_;
};

}  // namespace weir
