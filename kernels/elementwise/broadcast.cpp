#include "kernels/elementwise/broadcast.h"

namespace weir {

std::vector<int64_t> BroadcastStrides(const Dims& in, const Dims& out) {
  std::vector<int64_t> strides(out.size(), 0);
  int64_t stride = 1;
  for (size_t k = 0; k < in.size(); ++k) {
    const int64_t dim = in[in.size() - 1 - k];
    if (dim != 1) strides[out.size() - 1 - k] = stride;
    stride *= dim;
  }
  return strides;
}

std::vector<int64_t> BroadcastIndex(const Dims& in, const Dims& out) {
  const auto strides = BroadcastStrides(in, out);
  std::vector<int64_t> index(static_cast<size_t>(NumElements(out)));
  std::vector<int64_t> position(out.size(), 0);
  int64_t at = 0;
  for (int64_t& slot : index) {
    slot = at;
    for (size_t axis = out.size(); axis-- > 0;) {
      at += strides[axis];
      if (++position[axis] < out[axis]) break;
      at -= strides[axis] * out[axis];
      position[axis] = 0;
    }
  }
  return index;
}

}  // namespace weir
