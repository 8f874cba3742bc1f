#include "importer/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "graph/error.h"

namespace weir {

std::shared_ptr<const MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  const auto fail = [&](const char* what) {
    throw Error(ErrorCode::kIoError,
                StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
  };
  // O_NONBLOCK: opening a FIFO must not hang before its kind is known.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("open");
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) fail("examine");
  WEIR_CHECK(S_ISREG(info.st_mode), ErrorCode::kIoError, path, " is not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) fail("map");
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace weir
