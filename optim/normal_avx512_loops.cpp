#include "optim/normal_paths.h"

#ifdef WEIR_NORMAL_VECTORS
#include <immintrin.h>

#include <bit>
#include <cmath>

// Of what follows alone: functions of the headers above may be merged with those of other files.
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512vl,prefer-vector-width=512")
#include "optim/normal_lanes.h"

namespace weir {
namespace {

struct Avx512 {
  using Whole = uint64_t __attribute__((vector_size(64)));
  using Real = double __attribute__((vector_size(64)));
  static Whole Multiply(Whole a, Whole b) {
    return __builtin_bit_cast(Whole, _mm512_maskz_mul_epu32(static_cast<__mmask8>(-1), __builtin_bit_cast(__m512i, a), __builtin_bit_cast(__m512i, b)));
  }
};

}  // namespace

void FillNormalAvx512(const NormalStream& stream, uint64_t first_pair, float* out) { NormalLanes<Avx512>::Fill(stream, first_pair, out); }

}  // namespace weir
#endif
