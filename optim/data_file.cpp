#include "optim/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "graph/error.h"

namespace weir {
namespace {

constexpr int kMostOpen = 256;  // of the 1024 that a process may usually have
std::atomic<int> open_files = 0;

class OpenedFile {
 public:
  // O_NONBLOCK: opening a FIFO must not hang before its kind is known.
  explicit OpenedFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    WEIR_CHECK(fd_ >= 0, ErrorCode::kIoError, "cannot open data file '", path, "': ", std::strerror(errno));
    if (fstat(fd_, &info_) == 0 && S_ISREG(info_.st_mode)) return;
    ::close(fd_);
    throw Error(ErrorCode::kIoError, StrCat("data file '", path, "' is not a regular file"));
  }
  ~OpenedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;
  int fd() const { return fd_; }
  const struct stat& info() const { return info_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
  struct stat info_ {};
};

}  // namespace

DataFile::DataFile(const std::filesystem::path& path) : path_(path.string()) {
  OpenedFile file(path_);
  size_ = file.info().st_size;
  device_ = file.info().st_dev;
  inode_ = file.info().st_ino;
  if (open_files.fetch_add(1) < kMostOpen) {
    fd_ = file.Release();
  } else {
    --open_files;
  }
}

DataFile::~DataFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  --open_files;
}

void DataFile::Read(int64_t offset, std::span<std::byte> out) const {
  WEIR_CHECK(offset >= 0 && offset + std::ssize(out) <= size_, ErrorCode::kInternal, "read past the end of ", path_);
  if (fd_ < 0) {
    const OpenedFile file(path_);
    WEIR_CHECK(file.info().st_ino == inode_ && file.info().st_dev == device_, ErrorCode::kIoError, "data file '", path_,
               "' was replaced by another one while it was read; put back what this run began with");
    return ReadFrom(file.fd(), offset, out);
  }
  ReadFrom(fd_, offset, out);
}

void DataFile::ReadFrom(int fd, int64_t offset, std::span<std::byte> out) const {
  for (int64_t done = 0; done < std::ssize(out);) {
    const ssize_t count = pread(fd, out.data() + done, out.size() - static_cast<size_t>(done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    WEIR_CHECK(count >= 0, ErrorCode::kIoError, "cannot read byte ", offset + done, " of data file '", path_, "': ", std::strerror(errno));
    WEIR_CHECK(count > 0, ErrorCode::kIoError, "data file '", path_, "' was cut short while it was read: it had ", size_, " bytes when it was opened, now it ends before byte ",
               offset + done + 1, "; put back what this run began with");
    done += count;
  }
}

}  // namespace weir
