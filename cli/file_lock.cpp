#include "cli/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

namespace weir {

FileLock::FileLock(const std::filesystem::path& file) : fd_(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  error_ = errno;
  state_ = fd_ < 0 ? State::kNoFile : error_ == EWOULDBLOCK ? State::kBusy : State::kNoLocks;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace weir
