#include "kernels/elementwise/broadcast.h"

#include "kernels/common/index_map.h"

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
  std::vector<int64_t> index(static_cast<size_t>(CheckedElements(out)));
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

BroadcastRows PlanBroadcast(const Dims& out, const std::vector<const Dims*>& operands) {
  BroadcastRows rows;
  std::vector<std::vector<int64_t>> strides;
  for (const Dims* operand : operands) strides.push_back(BroadcastStrides(*operand, out));
  // Axes from the innermost out; each either extends the last merged axis for every operand or
  // starts a new one.
  std::vector<int64_t> merged;  // innermost first
  std::vector<std::vector<int64_t>> merged_strides(operands.size());
  for (size_t axis = out.size(); axis-- > 0;) {
    if (out[axis] == 1) continue;
    bool extends = !merged.empty();
    for (size_t k = 0; extends && k < operands.size(); ++k) {
      extends = strides[k][axis] == merged_strides[k].back() * merged.back();
    }
    if (extends) {
      merged.back() *= out[axis];
      continue;
    }
    merged.push_back(out[axis]);
    for (size_t k = 0; k < operands.size(); ++k) merged_strides[k].push_back(strides[k][axis]);
  }
  rows.row_stride.assign(operands.size(), 0);
  rows.strides.resize(operands.size());
  if (merged.empty()) return rows;
  rows.length = merged[0];
  rows.dims.assign(merged.rbegin(), merged.rend() - 1);
  for (size_t k = 0; k < operands.size(); ++k) {
    rows.row_stride[k] = merged_strides[k][0];
    rows.strides[k].assign(merged_strides[k].rbegin(), merged_strides[k].rend() - 1);
  }
  return rows;
}

}  // namespace weir
