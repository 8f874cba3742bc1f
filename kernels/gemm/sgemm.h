#pragma once
#include <cstdint>

namespace weir {

// Terms of one fused-multiply-add chain: k is cut into blocks of this many terms (the last one
// shorter). Part of the numerical definition of every float32 product on the CPU.
inline constexpr int64_t kSgemmBlockK = 256;

struct SgemmOptions {
  bool transpose_a = false;     // a is stored [k,m] instead of [m,k]
  bool transpose_b = false;     // b is stored [n,k] instead of [k,n]
  bool accumulate = false;      // C += instead of C =
  const float* bias = nullptr;  // [n], added to every row after the last block
};

// C[m,n] = A[m,k] B[k,n] (+ bias), row-major; lda, ldb, ldc are row strides of the arrays as
// stored.
//
// Definition of one element: s_t = the chain s = fma(a[i,p], b[p,j], s) from zero, p ascending
// within block t of kSgemmBlockK; C = ((s_0 + s_1) + ...) (+ bias), with accumulate C = ((C + s_0)
// + ...)
// (+ bias). So an element has the same bits whatever m, n, its place, strides, transposes, thread
// count or instruction set, and cutting k at multiples of kSgemmBlockK with accumulate changes
// nothing. k = 0 gives 0 (or C with accumulate) + bias.
//
// Uses the CPU threads of backend/cpu/parallel.h (inline inside a ParallelFor). Packing buffers are
// per thread and made once. C must not overlap A or B.
void Sgemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b,
           int64_t ldb, float* c, int64_t ldc, const SgemmOptions& options = {});

}  // namespace weir
