#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>

namespace weir {

// Bytes in order from one thread to another through fixed memory. As large as all of them, the writer never waits for the reader.
class StagingRing {
 public:
  explicit StagingRing(std::span<std::byte> memory) : memory_(memory) {}

  // Of the thread that fills it: waits for room, gives 1 to `most` bytes of it; none once the ring is closed.
  std::span<std::byte> Room(int64_t most);
  void Publish(int64_t bytes);
  // Of the thread that empties it: waits for bytes, gives 1 to `most`; none once it is closed.
  std::span<const std::byte> Take(int64_t most);
  void Release(int64_t bytes);
  // Both sides stop waiting: one of them gave up.
  void Close();

 private:
  int64_t size() const { return static_cast<int64_t>(memory_.size()); }
  // Up to `most` of the `count` bytes from place `position` on, as far as they are in one piece.
  std::span<std::byte> Piece(int64_t position, int64_t count, int64_t most) const;

  const std::span<std::byte> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t filled_ = 0, emptied_ = 0;  // bytes since the start
  bool closed_ = false;
};

}  // namespace weir
