#include "importer/output_file.h"

#include <fcntl.h>
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

OutputFile::OutputFile(fs::path target) : target_(std::move(target)) {
  std::string name = target_.string() + ".tmp.XXXXXX";
  fd_ = ::mkstemp(name.data());
  if (fd_ < 0) Fail("create");
  temporary_ = name;
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
  const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    ::fsync(directory);  // the rename itself survives a power cut
    ::close(directory);
  }
}

}  // namespace weir
