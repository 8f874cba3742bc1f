#include "backend/cuda/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "graph/error.h"

namespace weir {
namespace {

using Name = std::array<char, 64>;

int Open(const char* name, int flags, size_t bytes) {
  const int file = shm_open(name, flags, 0600);
  WEIR_CHECK(file >= 0, ErrorCode::kCommError, "cannot open shared memory ", name, ": ", std::strerror(errno));
  if ((flags & O_CREAT) != 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    shm_unlink(name);
    throw Error(ErrorCode::kCommError, StrCat("cannot make ", bytes, " bytes of shared memory: ", std::strerror(errno)));
  }
  return file;
}

}  // namespace

SharedMemory::SharedMemory(Communicator& host, size_t bytes) : size_(bytes) {
  const bool makes = host.rank() == 0;
  Name name{};
  int file = -1;
  if (makes) {
    std::snprintf(name.data(), name.size(), "/weir-%d-%p", static_cast<int>(getpid()), static_cast<void*>(this));
    shm_unlink(name.data());  // of a process of the same number that was killed
    file = Open(name.data(), O_CREAT | O_EXCL | O_RDWR, bytes);
  }
  host.Broadcast(0, std::as_writable_bytes(std::span(name)), {"SharedMemory", "name"});
  if (!makes) file = Open(name.data(), O_RDWR, bytes);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  host.Barrier({"SharedMemory", "opened"});
  if (makes) shm_unlink(name.data());
  WEIR_CHECK(memory != MAP_FAILED, ErrorCode::kCommError, "cannot map ", bytes, " bytes of shared memory: ", std::strerror(errno));
  data_ = static_cast<std::byte*>(memory);
}

SharedMemory::~SharedMemory() { munmap(data_, size_); }

}  // namespace weir
