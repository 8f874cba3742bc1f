#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace weir {

struct Mapping;

// A regular file mapped read-only for as long as anyone holds it. When somebody cuts it meanwhile, or its disk fails, a read of
// what is gone ends the process with exit code 1 and one line on stderr that names the file, the byte and both sizes.
class MappedFile {
 public:
  // Throws IoError when the file cannot be opened, is not a regular file or cannot be mapped.
  static std::shared_ptr<const MappedFile> Open(const std::filesystem::path& path);
  // Throws IoError when a file that is mapped was written to since it was opened: what was read of it may be of two versions. Call
  // it before a result of mapped bytes is used. A file that another one has replaced is whole: its mapping stays.
  static void CheckUnchanged();
  void CheckWhole() const;  // the same of this file, which others may append to
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size, Mapping* mapping) : data_(data), size_(size), mapping_(mapping) {}
  const std::byte* data_;
  size_t size_;
  Mapping* mapping_;
};

}  // namespace weir
