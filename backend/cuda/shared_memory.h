#pragma once
#include <cstddef>

#include "backend/communicator.h"

namespace weir {

// Zeroed memory that all members of a group on one host see, each at an address of its own. Its name is gone as soon as all
// have it. Collective.
class SharedMemory {
 public:
  SharedMemory(Communicator& host, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  std::byte* data_ = nullptr;
};

}  // namespace weir
