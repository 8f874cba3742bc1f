#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/common/integers.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/reduce/reduce_axis.h"

namespace weir {
namespace {

// A run of adjacent axes that are all reduced or all kept; axes of size 1 belong to any run.
struct Run {
  int64_t size;
  bool reduced;
};
std::vector<Run> Runs(const Dims& dims, const std::vector<bool>& reduced) {
  std::vector<Run> runs;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] == 1) continue;
    if (!runs.empty() && runs.back().reduced == reduced[axis]) {
      runs.back().size *= dims[axis];
    } else {
      runs.push_back({dims[axis], reduced[axis]});
    }
  }
  return runs;
}

// The reduction that combines results of `kind` over one run with those over another.
Reduction Next(Reduction kind) {
  const bool sum =
      kind == Reduction::kMean || kind == Reduction::kL2 || kind == Reduction::kSumSquare;
  return sum ? Reduction::kSum : kind;
}

int64_t Product(const std::vector<Run>& runs, size_t begin, size_t end) {
  int64_t product = 1;
  for (size_t k = begin; k < end; ++k) product *= runs[k].size;
  return product;
}

// Reduces run after run, the innermost first, each into a smaller buffer; the last into y.
void ReduceRuns(Reduction kind, const float* x, std::vector<Run> runs, float* y) {
  // A tensor without a reduced run goes through one of size 1: squares and the like still apply.
  if (std::none_of(runs.begin(), runs.end(), [](const Run& r) { return r.reduced; }))
    runs.push_back({1, true});
  std::vector<float> held;
  for (;;) {
    size_t at = runs.size();
    while (!runs[--at].reduced) {
    }
    const int64_t outer = Product(runs, 0, at), inner = Product(runs, at + 1, runs.size());
    const bool last = std::none_of(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(at),
                                   [](const Run& r) { return r.reduced; });
    std::vector<float> next(static_cast<size_t>(last ? 0 : outer * inner));
    ReduceAxis(kind, x, outer, runs[at].size, inner, last ? y : next.data());
    if (last) return;
    held = std::move(next);
    x = held.data();
    kind = Next(kind);
    runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

template <Reduction kind>
void LaunchReduce(KernelContext& c) {
  const Tensor& x = c.inputs[0];
  const int64_t count = c.outputs[0].elements();
  if (x.dtype != DType::kFloat32 || x.elements() == 0 || count == 0) return LaunchReference(c);
  std::vector<int64_t> axes;
  if (c.has(1)) axes = ReadInts(c.inputs[1]);
  const auto reduced = ReducedAxes(c.attributes(), x.dims.size(), c.has(1) ? &axes : nullptr);
  float* y = c.outputs[0].data<float>();
  ReduceRuns(kind, x.data<float>(), Runs(x.dims, reduced), y);
  if (kind == Reduction::kMean) {
    const int64_t terms = x.elements() / count;
    const auto divisor = static_cast<float>(terms);
    for (int64_t k = 0; k < count; ++k) y[k] /= divisor;
  }
  if (kind == Reduction::kL2) {
    for (int64_t k = 0; k < count; ++k) y[k] = std::sqrt(y[k]);
  }
}

}  // namespace

#define WEIR_REDUCE(Name)                                                   \
  const Kernel& Reduce##Name##CpuKernel() {                                 \
    static const Kernel kernel{.launch = LaunchReduce<Reduction::k##Name>}; \
    return kernel;                                                          \
  }
WEIR_REDUCE(Sum)
WEIR_REDUCE(Mean)
WEIR_REDUCE(Max)
WEIR_REDUCE(Min)
WEIR_REDUCE(Prod)
WEIR_REDUCE(L2)
WEIR_REDUCE(SumSquare)
WEIR_REDUCE(LogSumExp)
#undef WEIR_REDUCE

}  // namespace weir
