#include "importer/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>

#include "graph/error.h"

namespace weir {

// What is known of a mapped file. None is ever freed, for a signal's handler may be reading it: closed ones are used again.
struct Mapping {
  std::atomic<const std::byte*> begin = nullptr;  // nullptr: closed; the rest is valid while it is not
  std::string path;
  struct stat info {};  // when it was opened
  Mapping* next = nullptr;
};

namespace {

std::mutex changes;  // of the list; handlers read without it
std::atomic<Mapping*> mappings = nullptr;
struct sigaction before;

class Words {  // without allocation
 public:
  Words& operator<<(const char* text) {
    const size_t length = std::min(std::strlen(text), sizeof(text_) - size_);
    std::memcpy(text_ + size_, text, length);
    size_ += length;
    return *this;
  }
  Words& operator<<(int64_t number) {
    char digits[24] = {};
    std::to_chars(digits, digits + sizeof(digits) - 1, number);
    return *this << static_cast<const char*>(digits);
  }
  ~Words() {
    if (write(STDERR_FILENO, text_, size_) < 0) return;  // nobody reads
  }

 private:
  char text_[2 * 4096];
  size_t size_ = 0;
};

// What the file is now; nullopt where another one has its name.
std::optional<struct stat> Now(const Mapping& mapping) {
  struct stat now {};
  const bool same = stat(mapping.path.c_str(), &now) == 0 && now.st_ino == mapping.info.st_ino && now.st_dev == mapping.info.st_dev;
  return same ? std::optional(now) : std::nullopt;
}

void Tell(const Mapping& mapping, int64_t at) {
  const auto now = Now(mapping);
  Words words;
  words << "weir: IoError: cannot read byte " << at << " of '" << mapping.path.c_str() << "': ";
  if (now && now->st_size <= at) {
    words << "the file was cut while it was read, from " << int64_t{mapping.info.st_size} << " bytes to " << int64_t{now->st_size};
  } else {
    words << "its disk failed, or the file, of " << int64_t{mapping.info.st_size} << " bytes when it was opened, was cut or removed";
  }
  words << "; put the whole file back and start again\n";
}

// A read of a mapped page that has no file behind it. Nothing can be thrown here, and nothing may go on with what was read.
void OnBusError(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  const bool fault = info->si_code > 0;  // not a signal that somebody sent
  for (const Mapping* mapping = mappings; fault && mapping != nullptr; mapping = mapping->next) {
    const std::byte* begin = mapping->begin;
    if (begin == nullptr || at < begin || at >= begin + mapping->info.st_size) continue;
    Tell(*mapping, at - begin);
    _exit(1);
  }
  sigaction(signal, &before, nullptr);  // somebody else's: a fault comes again by itself
  if (!fault) raise(signal);
}

bool HandleBusErrors() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGBUS, &action, &before) == 0;
}

Mapping* Register(const std::byte* data, const std::filesystem::path& path, const struct stat& info) {
  static const bool handled = HandleBusErrors();
  static_cast<void>(handled);
  const std::lock_guard lock(changes);
  Mapping* mapping = mappings;
  while (mapping != nullptr && mapping->begin != nullptr) mapping = mapping->next;
  const bool fresh = mapping == nullptr;
  if (fresh) mapping = new Mapping;
  mapping->path = path.string();
  mapping->info = info;
  if (fresh) mapping->next = mappings;
  mapping->begin = data;
  if (fresh) mappings = mapping;
  return mapping;
}

[[noreturn]] void FailChanged(const Mapping& mapping, int64_t bytes) {
  throw Error(ErrorCode::kIoError, StrCat("'", mapping.path, "' was written to while it was read: it had ", mapping.info.st_size, " bytes and has ", bytes,
                                          "; put the whole file back and start again"));
}

}  // namespace

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
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile(nullptr, 0, nullptr));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) fail("map");
  const auto* bytes = static_cast<const std::byte*>(data);
  return std::shared_ptr<const MappedFile>(new MappedFile(bytes, size, Register(bytes, path, info)));
}

void MappedFile::CheckUnchanged() {
  const std::lock_guard lock(changes);
  for (const Mapping* mapping = mappings; mapping != nullptr; mapping = mapping->next) {
    const struct stat& then = mapping->info;
    const auto now = mapping->begin == nullptr ? std::nullopt : Now(*mapping);
    const bool same = !now || (now->st_size == then.st_size && now->st_mtim.tv_sec == then.st_mtim.tv_sec && now->st_mtim.tv_nsec == then.st_mtim.tv_nsec);
    if (!same) FailChanged(*mapping, now->st_size);
  }
}

void MappedFile::CheckWhole() const {
  const auto now = mapping_ == nullptr ? std::nullopt : Now(*mapping_);
  if (now && now->st_size < mapping_->info.st_size) FailChanged(*mapping_, now->st_size);
}

MappedFile::~MappedFile() {
  if (mapping_ == nullptr) return;
  mapping_->begin = nullptr;
  ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace weir
