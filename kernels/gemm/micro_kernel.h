#pragma once
#include <cstdint>
#include <span>

namespace weir {

// One tile of C over one k block: s = the fused-multiply-add chain from zero; then C = s, or C + s
// when `add`; then + bias when given.
struct TileArgs {
  int64_t k;
  const float* a;  // packed [k][rows]
  const float* b;  // k rows of nr floats
  int64_t ldb;
  float* c;  // [rows][nr]
  int64_t ldc;
  const float* bias;  // [nr] or nullptr
  bool add;
};
using TileFunction = void (*)(const TileArgs&);

inline constexpr int kMaxTileRows = 12, kMaxTileColumns = 32;

// The inner loop for one instruction set. All give the same bits.
struct MicroKernel {
  const char* name;
  int mr, nr;                      // largest tile
  TileFunction run[kMaxTileRows];  // run[r - 1] makes r <= mr rows
};

// What this machine can run, fastest first; the last one is portable.
std::span<const MicroKernel* const> SupportedMicroKernels();
// The first of them unless SetMicroKernel chose another (tests, benchmarks; nullptr = the first).
const MicroKernel& ActiveMicroKernel();
void SetMicroKernel(const MicroKernel* kernel);

extern const MicroKernel kScalarMicroKernel;
#if defined(__x86_64__)
extern const MicroKernel kAvx2MicroKernel, kAvx512MicroKernel;
#endif

}  // namespace weir
