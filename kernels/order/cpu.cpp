#include <algorithm>

#include "backend/cpu/parallel.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/order/order.h"

namespace weir {
namespace {

// Beyond this, insertion costs more than sorting a copy.
constexpr int64_t kMaxInserted = 64;

// One row: the k best so far stay sorted in `values`, `ids`; a later equal never passes an earlier
// one.
struct TopKRow {
  const float* x;
  float* values;
  int64_t* ids;
  int64_t size, k, stride;

  void Select(bool (*before)(double, double)) const {
    int64_t found = 0;
    for (int64_t id = 0; id < size; ++id) {
      const float value = x[id * stride];
      if (found == k && !before(value, values[(k - 1) * stride])) continue;
      int64_t at = found < k ? found++ : k - 1;
      for (; at > 0 && before(value, values[(at - 1) * stride]); --at) {
        values[at * stride] = values[(at - 1) * stride];
        ids[at * stride] = ids[(at - 1) * stride];
      }
      values[at * stride] = value;
      ids[at * stride] = id;
    }
  }
};

void LaunchTopK(KernelContext& c) {
  const Tensor& x = c.inputs[0];
  const int64_t axis = c.attributes().Int("axis", -1);
  const AxisView view = ViewAxis(x.dims, axis);
  const int64_t k = ViewAxis(c.outputs[0].dims, axis).size;
  const bool both = c.outputs.size() > 1 && c.outputs[0] && c.outputs[1];
  if (k == 0) return;
  if (x.dtype != DType::kFloat32 || k > kMaxInserted || !both) return LaunchReference(c);
  const auto before = c.attributes().Int("largest", 1) != 0 ? Larger : Smaller;
  const int64_t rows = view.outer * view.inner;
  ParallelFor(rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, view.size)),
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  const int64_t outer = row / view.inner, inner = row % view.inner;
                  const int64_t to = outer * k * view.inner + inner;
                  TopKRow{x.data<float>() + outer * view.size * view.inner + inner,
                          c.outputs[0].data<float>() + to,
                          c.outputs[1].data<int64_t>() + to,
                          view.size,
                          k,
                          view.inner}
                      .Select(before);
                }
              });
}

}  // namespace

const Kernel& TopKCpuKernel() {
  static const Kernel kernel{.launch = LaunchTopK};
  return kernel;
}

}  // namespace weir
