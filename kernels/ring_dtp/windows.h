#pragma once
#include <algorithm>
#include <span>
#include <string_view>

#include "backend/communicator.h"
#include "graph/layout.h"
#include "kernels/ring_dtp/sizes.h"

namespace weir {

// That the group is the node's and `rows` are this rank's share of `weight`.
void CheckHolders(const HeadSizes& sizes, const Communicator* group, int64_t rows, std::string_view weight);

// Columns of window number `window` that `member` holds.
Share WindowPart(const HeadSizes& sizes, int64_t window, int64_t member);

// The rows of the head's weight, window by window in vocabulary order, then again for every further pass. On one
// rank they are the weight itself. On several, those who hold rows of a window send them to all others of the group;
// while a window is at work the next one travels, into the buffer that the one before left. Every rank takes every
// window, tokens or none.
class WeightWindows {
 public:
  // Bytes of `buffers`: none on one rank.
  static int64_t BufferBytes(const HeadSizes& sizes, int64_t row_bytes);

  WeightWindows(const HeadSizes& sizes, int64_t row_bytes, std::span<const std::byte> own, std::byte* buffers,
                Communicator* group, std::string_view weight, int64_t passes);

  // Rows of the next window; they stay until the next call.
  const std::byte* Next();

 private:
  int64_t Begin(int64_t fetch) const { return fetch % size_.windows() * size_.window; }
  int64_t End(int64_t fetch) const { return std::min(Begin(fetch) + size_.window, size_.vocabulary); }
  Share Part(int64_t fetch, int64_t member) const { return WindowPart(size_, fetch % size_.windows(), member); }
  bool IsOwn(int64_t fetch) const;
  std::byte* Buffer(int64_t fetch) const { return buffers_ + fetch % 2 * size_.window * row_bytes_; }
  void Start(int64_t fetch);

  HeadSizes size_;
  int64_t row_bytes_;
  std::span<const std::byte> own_;
  std::byte* buffers_;
  Communicator* group_;
  std::string_view weight_;
  int64_t fetches_, next_ = 0;
  Share held_;  // columns of `own`
  Communicator::Ticket in_flight_;
};

}  // namespace weir
