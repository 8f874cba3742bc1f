// Loaded before a program (LD_PRELOAD) to end it by SIGKILL at its N-th call that changes a file or folder below WEIR_KILL_BELOW:
// what a machine that dies there leaves behind. A write is cut: half of its bytes reach the file. WEIR_KILL_AT = N; 0 = never.
// With WEIR_KILL_RANK only the process of that WEIR_RANK counts. WEIR_KILL_LOG gets a line for each call, before it is made.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Plan {
  std::string below = Variable("WEIR_KILL_BELOW");
  long at = std::atol(Variable("WEIR_KILL_AT").c_str());
  int log = -1;
  bool counts = !below.empty() && (Variable("WEIR_KILL_RANK").empty() || Variable("WEIR_KILL_RANK") == Variable("WEIR_RANK"));
  Plan() {
    if (counts) log = open(Variable("WEIR_KILL_LOG").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
};

Plan& ThePlan() {
  static Plan plan;
  return plan;
}

std::string PathOf(int fd) {
  char path[PATH_MAX];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof(path));
  return length < 0 ? "" : std::string(path, static_cast<size_t>(length));
}

std::string PathAt(int folder, const char* path) { return path[0] == '/' || folder == AT_FDCWD ? path : PathOf(folder) + "/" + path; }

// True when this call is the one to die at.
bool IsLast(const char* call, const std::string& path) {
  static std::atomic<long> calls = 0;
  Plan& plan = ThePlan();
  if (!plan.counts || path.compare(0, plan.below.size(), plan.below) != 0) return false;
  const long number = ++calls;
  const std::string line = std::string(call) + " " + path.substr(plan.below.size()) + "\n";
  if (plan.log >= 0) syscall(SYS_write, plan.log, line.data(), line.size());
  return number == plan.at;
}

void Die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

void Count(const char* call, const std::string& path) {
  if (IsLast(call, path)) Die();
}

template <class Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool Writes(const char* mode) { return std::strpbrk(mode, "wa+") != nullptr; }

}  // namespace

extern "C" {

ssize_t write(int fd, const void* bytes, size_t size) {
  const bool last = IsLast("write", PathOf(fd));
  const ssize_t written = syscall(SYS_write, fd, bytes, last ? size / 2 : size);
  if (last) Die();
  return written;
}

ssize_t writev(int fd, const iovec* parts, int count) {
  if (IsLast("write", PathOf(fd))) {
    syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len / 2);
    Die();
  }
  return syscall(SYS_writev, fd, parts, count);
}

int fsync(int fd) {
  Count("fsync", PathOf(fd));
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int truncate(const char* path, off_t size) noexcept {
  Count("truncate", path);
  return static_cast<int>(syscall(SYS_truncate, path, size));
}

int rename(const char* from, const char* to) noexcept {
  Count("rename", to);
  return static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

int mkdir(const char* path, mode_t mode) noexcept {
  Count("mkdir", path);
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int unlink(const char* path) noexcept {
  Count("unlink", path);
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  Count("unlink", PathAt(folder, path));
  return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
}

int remove(const char* path) noexcept {
  Count("remove", path);
  return Real<decltype(remove)>("remove")(path);
}

int rmdir(const char* path) noexcept {
  Count("rmdir", path);
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR));
}

int mkstemp(char* path) {
  Count("create", path);
  return Real<decltype(mkstemp)>("mkstemp")(path);
}

int mkstemp64(char* path) {
  Count("create", path);
  return Real<decltype(mkstemp64)>("mkstemp64")(path);
}

FILE* fopen(const char* path, const char* mode) {
  if (Writes(mode)) Count("create", path);
  return Real<decltype(fopen)>("fopen")(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  if (Writes(mode)) Count("create", path);
  return Real<decltype(fopen64)>("fopen64")(path, mode);
}

}  // extern "C"
