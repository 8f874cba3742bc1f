#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace weir {

// Writes a file beside its target and moves it there whole on Commit: readers see the old file or
// the new one, never a part. Without Commit nothing is left behind; what a killed process left is
// removed by the next writer of the same target.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path target);  // throws IoError
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(std::span<const std::byte> bytes);
  void Write(const std::string& bytes) {
    Write(std::as_bytes(std::span(bytes.data(), bytes.size())));
  }
  void AlignTo(int64_t alignment);  // pads with zeros
  int64_t position() const { return position_; }
  // Flushed to the device and renamed on return.
  void Commit();

 private:
  [[noreturn]] void Fail(const char* what) const;
  std::filesystem::path target_, temporary_;
  int fd_ = -1;
  int64_t position_ = 0;
};

}  // namespace weir
