#include "bench/gemm_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iomanip>
#include <random>

#include "backend/cpu/parallel.h"
#include "bench/blas_peer.h"
#include "kernels/gemm/micro_kernel.h"
#include "kernels/gemm/sgemm.h"

namespace weir {
namespace {

double MedianSeconds(int repeats, const std::function<void()>& run) {
  for (int i = 0; i < 2; ++i) run();
  std::vector<double> seconds;
  for (int i = 0; i < std::max(repeats, 10); ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(seconds.size() / 2),
                   seconds.end());
  return seconds[seconds.size() / 2];
}

std::vector<float> Random(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

struct Result {
  std::array<int64_t, 3> size;
  double ours = 0, peer = 0;  // seconds; peer 0 = none
  bool agree = true;
  double Tflops(double seconds) const {
    const double flop = 2.0 * static_cast<double>(size[0] * size[1]) * static_cast<double>(size[2]);
    return seconds > 0 ? flop / seconds * 1e-12 : 0;
  }
};

Result Measure(const std::array<int64_t, 3>& size, const GemmBenchOptions& options,
               const BlasPeer& peer) {
  const auto [m, n, k] = size;
  const auto a = Random(m * k, 1), b = Random(k * n, 2);
  std::vector<float> c(static_cast<size_t>(m * n)), d(c.size());
  Result result{size};
  const SgemmOptions sgemm{.transpose_a = options.transpose_a, .transpose_b = options.transpose_b};
  const int64_t lda = options.transpose_a ? m : k, ldb = options.transpose_b ? k : n;
  result.ours = MedianSeconds(options.repeats, [&, m = m, n = n, k = k] {
    Sgemm(m, n, k, a.data(), lda, b.data(), ldb, c.data(), n, sgemm);
  });
  if (!peer.found()) return result;
  result.peer = MedianSeconds(options.repeats, [&, m = m, n = n, k = k] {
    peer.Sgemm(options.transpose_a, options.transpose_b, m, n, k, a.data(), b.data(), d.data());
  });
  // Terms are at most 1: two orders of summation differ by well under k * eps * sqrt(k).
  const double tolerance = 1.2e-7 * static_cast<double>(k) + 1e-6;
  for (size_t i = 0; i < c.size(); ++i) {
    if (!(std::abs(static_cast<double>(c[i]) - d[i]) <= tolerance)) result.agree = false;
  }
  return result;
}

void PrintJson(const std::vector<Result>& results, const BlasPeer& peer, std::ostream& out) {
  out << "{\"kernel\": \"" << ActiveMicroKernel().name << "\", \"threads\": " << CpuThreads()
      << ", \"peer\": \"" << peer.name() << "\", \"results\": [";
  for (size_t i = 0; i < results.size(); ++i) {
    const Result& r = results[i];
    out << (i ? ", " : "") << "{\"m\": " << r.size[0] << ", \"n\": " << r.size[1]
        << ", \"k\": " << r.size[2] << ", \"ms\": " << r.ours * 1e3
        << ", \"tflops\": " << r.Tflops(r.ours);
    if (r.peer > 0) {
      out << ", \"peer_ms\": " << r.peer * 1e3 << ", \"peer_tflops\": " << r.Tflops(r.peer)
          << ", \"ratio\": " << r.peer / r.ours << ", \"agree\": " << (r.agree ? "true" : "false");
    }
    out << "}";
  }
  out << "]}\n";
}

void PrintTable(const std::vector<Result>& results, const BlasPeer& peer, std::ostream& out) {
  out << "float32 GEMM, " << ActiveMicroKernel().name << ", " << CpuThreads()
      << " threads; peer: " << peer.name() << "\n"
      << "     m      n      k        ms  TFLOP/s   peer ms  TFLOP/s  ours/peer\n"
      << std::fixed;
  for (const Result& r : results) {
    out << std::setw(6) << r.size[0] << std::setw(7) << r.size[1] << std::setw(7) << r.size[2];
    out << std::setprecision(3) << std::setw(10) << r.ours * 1e3 << std::setw(9)
        << r.Tflops(r.ours);
    if (r.peer > 0) {
      out << std::setw(10) << r.peer * 1e3 << std::setw(9) << r.Tflops(r.peer)
          << std::setprecision(2) << std::setw(11) << r.peer / r.ours
          << (r.agree ? "" : "  DIFFERS");
    } else {
      out << "  not found";
    }
    out << "\n";
  }
}

}  // namespace

int BenchGemm(const GemmBenchOptions& options, std::ostream& out) {
  if (options.threads > 0) SetCpuThreads(options.threads);
  const BlasPeer peer(CpuThreads());
  auto sizes = options.sizes;
  if (sizes.empty())
    sizes = {{256, 256, 256}, {1024, 1024, 1024}, {4096, 64, 64}, {512, 2048, 512}};
  std::vector<Result> results;
  for (const auto& size : sizes) results.push_back(Measure(size, options, peer));
  (options.json ? PrintJson : PrintTable)(results, peer, out);
  return std::all_of(results.begin(), results.end(), [](const Result& r) { return r.agree; }) ? 0
                                                                                              : 1;
}

}  // namespace weir
