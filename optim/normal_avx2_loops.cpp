#include "optim/normal_paths.h"

#ifdef WEIR_NORMAL_VECTORS
#include <immintrin.h>

#include <bit>
#include <cmath>

// Of what follows alone: functions of the headers above may be merged with those of other files.
#pragma GCC target("avx2,fma")
#include "optim/normal_lanes.h"

namespace weir {
namespace {

struct Avx2 {
  using Whole = uint64_t __attribute__((vector_size(32)));
  using Real = double __attribute__((vector_size(32)));
  static Whole Multiply(Whole a, Whole b) {
    return __builtin_bit_cast(Whole, _mm256_mul_epu32(__builtin_bit_cast(__m256i, a), __builtin_bit_cast(__m256i, b)));
  }
};

}  // namespace

void FillNormalAvx2(const NormalStream& stream, uint64_t first_pair, float* out) { NormalLanes<Avx2>::Fill(stream, first_pair, out); }

}  // namespace weir
#endif
