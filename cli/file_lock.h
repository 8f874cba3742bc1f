#pragma once
#include <cstdint>
#include <filesystem>

namespace weir {

// A lock on a file, which is made where it is not there: of one process at a time, until it ends, however it ends.
class FileLock {
 public:
  enum class State : uint8_t { kHeld, kBusy, kNoLocks, kNoFile };  // some network file systems have no locks

  explicit FileLock(const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  State state() const { return state_; }
  int error() const { return error_; }  // errno, unless held

 private:
  int fd_, error_ = 0;
  State state_ = State::kHeld;
};

}  // namespace weir
