#include <bit>
#include <cmath>
#include <vector>

#include "optim/normal_lanes.h"
#include "optim/normal_paths.h"

namespace weir {
namespace {

struct Plain {
  using Whole = uint64_t;
  using Real = double;
  static Whole Multiply(Whole a, Whole b) { return (a & 0xffffffff) * (b & 0xffffffff); }
};

std::vector<NormalPath> FindPaths() {
  std::vector<NormalPath> paths;
#ifdef WEIR_NORMAL_VECTORS
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) paths.push_back({"avx512", FillNormalAvx512});
  if (avx2) paths.push_back({"avx2", FillNormalAvx2});
#endif
  paths.push_back({"plain", FillNormalPlain});
  return paths;
}

}  // namespace

void FillNormalPlain(const NormalStream& stream, uint64_t first_pair, float* out) { NormalLanes<Plain>::Fill(stream, first_pair, out); }

std::span<const NormalPath> NormalPaths() {
  static const std::vector<NormalPath> paths = FindPaths();
  return paths;
}

}  // namespace weir
