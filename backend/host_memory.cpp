#include "backend/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "graph/error.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kNoLimit = int64_t{1} << 60;  // cgroup v1 writes a huge number for none

// The number after `key` in lines of "key value", or the file's first number without a key; -1 when there is none.
int64_t NumberIn(const fs::path& file, const std::string& key = "") {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = -1;
    if (key.empty() ? bool(words >> number) : (words >> word && word == key && words >> number)) return number;
  }
  return -1;
}

// One hierarchy's names for the same things.
struct Names {
  const char *limit, *used, *droppable;
};

void TakeLeast(HostMemory& least, int64_t available, const std::string& limit) {
  if (available >= 0 && (least.available < 0 || available < least.available)) least = {available, limit};
}

// The group and its parents: each may have a limit.
void ReadGroups(const fs::path& mount, std::string group, const Names& names, HostMemory& least) {
  for (;; group = fs::path(group).parent_path().string()) {
    const fs::path folder = mount / fs::path(group).relative_path();
    const int64_t limit = NumberIn(folder / names.limit), used = NumberIn(folder / names.used);
    if (limit >= 0 && limit < kNoLimit && used >= 0) {
      const int64_t droppable = std::max<int64_t>(0, NumberIn(folder / "memory.stat", names.droppable));
      TakeLeast(least, std::max<int64_t>(0, limit - used + std::min(used, droppable)), "cgroup " + group);
    }
    if (group.empty() || group == "/") return;
  }
}

}  // namespace

HostMemory ReadHostMemory(const fs::path& root) {
  HostMemory least;
  const int64_t free_kib = NumberIn(root / "proc/meminfo", "MemAvailable:");
  if (free_kib >= 0) least = {free_kib * 1024, "the machine"};
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" (v2) or "7:memory:/path" (v1)
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (controllers.empty()) ReadGroups(root / "sys/fs/cgroup", group, {"memory.max", "memory.current", "inactive_file"}, least);
    if (controllers == "memory") {
      ReadGroups(root / "sys/fs/cgroup/memory", group, {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}, least);
    }
  }
  return least;
}

void CheckHostMemory(int64_t bytes, int64_t processes, const HostMemory& memory) {
  if (memory.available < 0 || bytes <= memory.available / std::max<int64_t>(1, processes)) return;
  const std::string who = processes > 1 ? StrCat(processes, " ranks of this machine need ", bytes, " bytes of host memory each") : StrCat("this run needs ", bytes, " bytes of host memory");
  throw Error(ErrorCode::kBudgetExceeded, StrCat(who, ", ", memory.limit, " has ", memory.available, " left in all; use a smaller --sequence or --micro-batch, fewer ranks, a smaller "
                                                 "--host-budget or a larger --resident (weir plan prints the bytes, with --auto what fits)"));
}

std::byte* MapPages(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  constexpr size_t kLarge = size_t{1} << 26;  // large pages of memory that is hardly used are time and memory lost
  if (size >= kLarge) madvise(memory, size, MADV_HUGEPAGE);  // a kernel without them says no, and small pages do
  return static_cast<std::byte*>(memory);
}

void UnmapPages(std::byte* memory, int64_t bytes) noexcept { munmap(memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))); }

}  // namespace weir
