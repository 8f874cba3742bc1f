#pragma once
#include <string_view>

#include "backend/communicator.h"
#include "kernels/ring_dtp/sizes.h"

namespace weir {

// The weight's gradient, window by window, to the ranks that hold the columns: each sends what its tokens say of a
// window, and holders add all ranks' parts by the tree over the group (backend/tree_reduce.h). While the parts of one
// window travel the next ones are made.
class GradientParts {
 public:
  static int64_t BufferBytes(const HeadSizes& sizes);

  GradientParts(const HeadSizes& sizes, std::byte* buffers, Communicator& group, std::string_view weight);

  // Where the gradient of window number `window` is made, [width, H]; after Finish(window - 2).
  float* Partial(int64_t window) const;
  void Start(int64_t window);
  // This rank's part of the window: `count` elements from its row `row`; own ones in `own`, rank r's in rows + r * count. Until
  // the next Start.
  struct Arrived {
    float *own, *rows;
    int64_t count, row;
  };
  Arrived Finish(int64_t window);

 private:
  HeadSizes size_;
  float *partials_, *rows_;
  Communicator& group_;
  std::string_view weight_;
  Communicator::Ticket in_flight_;
};

}  // namespace weir
