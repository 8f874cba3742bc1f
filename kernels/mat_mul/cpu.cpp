#include <cstring>

#include "backend/cpu/parallel.h"
#include "backend/kernel.h"
#include "kernels/gemm/sgemm.h"
#include "kernels/mat_mul/geometry.h"

namespace weir {
namespace {

// One matrix b under all rows of a: the batches are rows of one product.
void FlattenRows(MatMulGeometry& g) {
  if (NumElements(g.b_batch) != 1 || NumElements(g.a_batch) != g.batches) return;
  g.m *= g.batches;
  g.batches = 1;
  g.batch = g.a_batch = g.b_batch = {};
}

// Runs body(batch) for all batches: side by side when there are enough, else each on every thread.
template <class Body>
void ForEachBatch(int64_t batches, const Body& body) {
  if (batches < CpuThreads()) {
    for (int64_t i = 0; i < batches; ++i) body(i);
    return;
  }
  ParallelFor(batches, 1, [&body](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

void LaunchMatMul(KernelContext& c) {
  MatMulGeometry g = MakeMatMulGeometry(c.inputs[0].dims, c.inputs[1].dims);
  FlattenRows(g);
  const float *a = c.inputs[0].data<float>(), *b = c.inputs[1].data<float>();
  float* y = c.outputs[0].data<float>();
  ForEachBatch(g.batches, [&](int64_t batch) {
    const auto [ai, bi] = g.Matrices(batch);
    Sgemm(g.m, g.n, g.k, a + ai * g.m * g.k, g.k, b + bi * g.k * g.n, g.n, y + batch * g.m * g.n,
          g.n);
  });
}

void LaunchMatMulGradient(KernelContext& c) {
  MatMulGeometry g = MakeMatMulGeometry(c.inputs[0].dims, c.inputs[1].dims);
  FlattenRows(g);
  const float *a = c.inputs[0].data<float>(), *b = c.inputs[1].data<float>();
  const float* dy = c.inputs[2].data<float>();
  float* out = c.outputs[0].data<float>();
  const bool left = c.attributes().Int("input") == 0;
  // Batches that share the operand add up in order, one after the other.
  const bool shared = NumElements(left ? g.a_batch : g.b_batch) != g.batches;
  const auto run = [&](int64_t batch) {
    const auto [ai, bi] = g.Matrices(batch);
    const float *am = a + ai * g.m * g.k, *bm = b + bi * g.k * g.n, *dm = dy + batch * g.m * g.n;
    if (left) {
      Sgemm(g.m, g.k, g.n, dm, g.n, bm, g.n, out + ai * g.m * g.k, g.k,
            {.transpose_b = true, .accumulate = shared});
    } else {
      Sgemm(g.k, g.n, g.m, am, g.k, dm, g.n, out + bi * g.k * g.n, g.n,
            {.transpose_a = true, .accumulate = shared});
    }
  };
  if (!shared) return ForEachBatch(g.batches, run);
  std::memset(out, 0, static_cast<size_t>(c.outputs[0].size_bytes()));
  for (int64_t batch = 0; batch < g.batches; ++batch) run(batch);
}

}  // namespace

const Kernel& MatMulCpuKernel() {
  static const Kernel kernel{.launch = LaunchMatMul};
  return kernel;
}

const Kernel& MatMulGradientCpuKernel() {
  static const Kernel kernel{.launch = LaunchMatMulGradient};
  return kernel;
}

}  // namespace weir
