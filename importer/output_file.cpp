#include "importer/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "graph/error.h"

namespace weir {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kTemporary = ".tmp.", kUnique = "XXXXXX";

fs::path FolderOf(const fs::path& target) { return target.has_parent_path() ? target.parent_path() : fs::path("."); }

// What writers of `target` left when they were killed: nobody holds the lock.
void RemoveLeftovers(const fs::path& target) {
  const std::string begin = StrCat(target.filename().string(), kTemporary);
  std::error_code error;
  for (auto entry = fs::directory_iterator(FolderOf(target), error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(begin) || name.size() != begin.size() + kUnique.size()) continue;
    const int fd = ::open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
    ::close(fd);
  }
}

// The bytes of a mapped file that was cut meanwhile: reading them ends the process in MappedFile's words.
void Touch(const volatile std::byte& byte) { static_cast<void>(std::byte(byte)); }

bool IsRemoved(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_nlink == 0;
}

}  // namespace

OutputFile::OutputFile(fs::path target) : target_(std::move(target)) {
  RemoveLeftovers(target_);
  do {
    if (fd_ >= 0) ::close(fd_);
    std::string name = StrCat(target_.string(), kTemporary, kUnique);
    fd_ = ::mkstemp(name.data());
    if (fd_ < 0) Fail("create");
    ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
    temporary_ = name;
    ::flock(fd_, LOCK_EX);  // where locks are unknown, nothing is taken for a leftover
  } while (IsRemoved(fd_));  // by another writer, before it had a lock
  const mode_t mask = ::umask(0);  // mkstemp makes files private; results are ordinary files
  ::umask(mask);
  ::fchmod(fd_, 0666 & ~mask);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::Fail(const char* what) const {
  throw Error(ErrorCode::kIoError,
              StrCat("cannot ", what, " ", target_, ": ", std::strerror(errno)));
}

void OutputFile::Write(std::span<const std::byte> bytes) {
  position_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    constexpr size_t kChunk = size_t{1} << 30;  // Linux writes at most 2 GiB at a time
    const ssize_t written = ::write(fd_, bytes.data(), std::min(bytes.size(), kChunk));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EFAULT) Touch(bytes[0]);
    if (written < 0) Fail("write");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::AlignTo(int64_t alignment) {
  const int64_t rest = position_ % alignment;
  if (rest != 0) Write(std::vector<std::byte>(static_cast<size_t>(alignment - rest)));
}

void OutputFile::Commit() {
  if (::fsync(fd_) != 0) Fail("flush");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) Fail("close");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) Fail("rename to");
  temporary_.clear();
  const int directory = ::open(FolderOf(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);  // the rename itself survives a power cut
    ::close(directory);
  }
}

}  // namespace weir
