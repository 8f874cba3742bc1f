#pragma once
#include <atomic>
#include <cstdint>

namespace weir {

// Where a receiver tells one sender, in memory that both see and that starts as zeros, where its next messages go. The
// receiver puts, the sender takes, each on one thread.
template <class Post>
class PostBox {
 public:
  static constexpr uint32_t kPosts = 16;

  // For the receiver: whether Put would fail.
  bool Full() const { return put_.load(std::memory_order_relaxed) - taken_.load(std::memory_order_acquire) == kPosts; }
  bool Put(const Post& post) {
    if (Full()) return false;
    const uint32_t n = put_.load(std::memory_order_relaxed);
    posts_[n % kPosts] = post;
    put_.store(n + 1, std::memory_order_release);
    return true;
  }
  bool Take(Post& post) {
    const uint32_t n = taken_.load(std::memory_order_relaxed);
    if (put_.load(std::memory_order_acquire) == n) return false;
    post = posts_[n % kPosts];
    taken_.store(n + 1, std::memory_order_release);
    return true;
  }

 private:
  alignas(64) std::atomic<uint32_t> put_;
  alignas(64) std::atomic<uint32_t> taken_;
  Post posts_[kPosts];
};

}  // namespace weir
