#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace weir {

// A regular file that is read for as long as a run lasts. What is there is read anew each time, never mapped: a file that
// is cut or replaced, or a disk that fails, is an error in words, not a signal or zeros. Reads may come from any thread.
class DataFile {
 public:
  explicit DataFile(const std::filesystem::path& path);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  int64_t size() const { return size_; }  // when it was opened; what is appended later is not read
  // Reads [offset, offset + out.size()), which lies within size(). Throws IoError.
  void Read(int64_t offset, std::span<std::byte> out) const;

  template <class T>
  std::vector<T> Values(int64_t offset, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    Read(offset, std::as_writable_bytes(std::span(values)));
    return values;
  }
  template <class T>
  T At(int64_t offset) const {
    T value;
    Read(offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

 private:
  void ReadFrom(int fd, int64_t offset, std::span<std::byte> out) const;

  std::string path_;
  int64_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  int fd_ = -1;  // the first few hundred files stay open, others are opened for each read
};

}  // namespace weir
