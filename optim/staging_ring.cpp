#include "optim/staging_ring.h"

#include <algorithm>

namespace weir {

std::span<std::byte> StagingRing::Piece(int64_t position, int64_t count, int64_t most) const {
  const int64_t place = position % size();
  return memory_.subspan(static_cast<size_t>(place), static_cast<size_t>(std::min({count, most, size() - place})));
}

std::span<std::byte> StagingRing::Room(int64_t most) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || filled_ - emptied_ < size(); });
  if (closed_) return {};
  return Piece(filled_, size() - (filled_ - emptied_), most);
}

void StagingRing::Publish(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  filled_ += bytes;
  changed_.notify_all();
}

std::span<const std::byte> StagingRing::Take(int64_t most) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || filled_ > emptied_; });
  if (closed_) return {};
  return Piece(emptied_, filled_ - emptied_, most);
}

void StagingRing::Release(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  emptied_ += bytes;
  changed_.notify_all();
}

void StagingRing::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace weir
