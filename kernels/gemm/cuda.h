#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir {

class CudaStream;

namespace cuda {

// A row-major matrix as stored: rows are `stride` elements apart. float32 or bfloat16.
struct Matrix {
  const void* data;
  DType dtype;
  int64_t stride;
  bool transposed = false;  // stored [k,m] (left) or [n,k] (right)
};

// What becomes of a product whose sum over k was made from zero in float32.
enum class GemmSum : uint8_t {
  kSet,
  kContinue,  // float32 operands: C takes the blocks of 256 terms one by one; else as kFold
  kFold,      // C += the finished sum
};

// C[m,n] = A[m,k] B[k,n] (+ bias[n]). C is written at `stride`; kContinue and kFold need float32.
struct GemmCall {
  int64_t m, n, k;
  Matrix a, b;
  void* c;
  DType c_dtype;
  int64_t c_stride;
  GemmSum sum = GemmSum::kSet;
  const float* bias = nullptr;
};

// A bfloat16 result of more terms than this is folded in float32 over groups of so many, each from
// zero, and rounded once. A multiple of the vocabulary leaf.
inline constexpr int64_t kSumGroup = 8192;

// Bytes of library workspace that a Gemm over operands of this type wants.
int64_t GemmWorkspaceBytes(DType dtype);

// A bfloat16 matrix of `rows` x `columns`, its rows copied to aligned ones in scratch where their
// pitch is no multiple of 8 bytes: the library's kernels for such pitches are slow and add in
// another order. `scratch` holds PackedBytes, 0 where the matrix needs none.
int64_t PackedBytes(DType dtype, int64_t rows, int64_t columns);
Matrix Packed(CudaStream& queue, Matrix matrix, int64_t rows, int64_t columns, void* scratch);

// bfloat16 operands: cuBLASLt with float32 accumulation, no split of k; the algorithm is chosen
// once per shape. Others: Simt's definition. Either way a row of C has the same bits whatever the
// other rows. Returns when enqueued.
void Gemm(CudaStream& queue, const GemmCall& call, void* workspace);

// float32 arithmetic with the CPU's definition (kernels/gemm/sgemm.h): chains of 256 fused
// multiply-adds from zero, left-folded; equal bits.
void SimtGemm(const GemmCall& call, CUstream_st* stream);

// y[i,j] += bias[j], rounded to y's type.
void AddBias(const GemmCall& y, CUstream_st* stream);

// to[k] = from[k], rounded to nearest even.
void RoundToBFloat16(const float* from, void* to, int64_t count, CUstream_st* stream);

// y = alpha * y + beta * c; c broadcasts by its strides (0 = repeated). c is float32 or of y's
// type.
struct GemmScale {
  int64_t rows, columns;
  float alpha, beta;
  const void* c;  // may be null
  DType c_dtype;
  int64_t c_row, c_column;
};
void ScaleGemm(void* y, DType dtype, const GemmScale& scale, CUstream_st* stream);

// out[at] = beta * sum in float64 of the elements of dy [rows,columns] that element `at` stands
// for.
void GemmBiasGradient(const GemmScale& scale, const void* dy, DType dtype, void* out,
                      DType out_dtype, int64_t count, CUstream_st* stream);

}  // namespace cuda
}  // namespace weir
