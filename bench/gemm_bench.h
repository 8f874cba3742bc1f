#pragma once
#include <array>
#include <cstdint>
#include <ostream>
#include <vector>

namespace weir {

struct GemmBenchOptions {
  std::vector<std::array<int64_t, 3>> sizes;  // m, n, k; empty = a default set
  bool transpose_a = false, transpose_b = false;
  int repeats = 10;  // timed runs, at least 10; the median is reported
  int threads = 0;   // 0 = every core this process may use
  bool json = false;
};

// Times Sgemm and, beside it in the same run, cblas_sgemm of an OpenBLAS (or other BLAS) found at
// run time. Prints time and TFLOP/s of both and their ratio. Returns the exit status: 0, or 1 when
// a product of ours differs from the peer's by more than rounding.
int BenchGemm(const GemmBenchOptions& options, std::ostream& out);

}  // namespace weir
