#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace weir {

// What the machine can still give this process, and whose limit that is.
struct HostMemory {
  int64_t available = -1;  // bytes; -1: it does not say
  std::string limit;       // "the machine", "cgroup /jobs/7"
};

// The least of MemAvailable and of what each memory cgroup above this process leaves, v1 or v2; file pages that a cgroup
// can drop count as free. `root` has /proc and /sys.
HostMemory ReadHostMemory(const std::filesystem::path& root = "/");

// Throws BudgetExceeded when `processes` of this machine that take `bytes` each are more than it has.
void CheckHostMemory(int64_t bytes, int64_t processes, const HostMemory& memory);

// Zeroed pages, committed when first touched, large ones where the system has them: what touches all of them is faults and
// little else. nullptr when the system refuses.
std::byte* MapPages(int64_t bytes);
void UnmapPages(std::byte* memory, int64_t bytes) noexcept;

}  // namespace weir
