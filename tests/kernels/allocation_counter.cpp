#include "tests/kernels/allocation_counter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> count = 0, live = 0, peak = 0;

void* Counted(void* memory) {
  if (memory == nullptr) return nullptr;
  ++count;
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t most = peak;
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

void* Aligned(size_t size, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  return Counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}

}  // namespace

void* operator new(size_t size) {
  if (void* memory = Counted(std::malloc(size == 0 ? 1 : size))) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, std::align_val_t alignment) {
  if (void* memory = Aligned(size, alignment)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {  // std::stable_sort's buffer
  return Counted(std::malloc(size == 0 ? 1 : size));
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }

namespace weir {

int64_t AllocationCount() { return count; }
int64_t LiveBytes() { return live; }
int64_t PeakBytes() {
  const int64_t most = peak;
  peak = live.load();
  return most;
}

}  // namespace weir
