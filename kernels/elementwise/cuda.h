// Elementwise device functions. Types: graph/dtype.h's kFloat32 and kBFloat16 for activations; integers and
// booleans where said. Outputs may be inputs of their own size.
#pragma once
#include <cstdint>

#include "graph/dtype.h"

struct CUstream_st;

namespace weir::cuda {

// clang-format off
#define WEIR_CUDA_UNARY(F)                                                                       \
  F(Neg) F(Abs) F(Sign) F(Relu) F(Exp) F(Log) F(Sqrt) F(Reciprocal) F(Floor) F(Ceil) F(Round)    \
  F(Sin) F(Cos) F(Tanh) F(Sigmoid) F(Erf) F(Softplus) F(HardSigmoid) F(LeakyRelu) F(Swish)       \
  F(Gelu) F(GeluTanh)
#define WEIR_CUDA_SLOPES(F)                                                                      \
  F(Abs) F(Relu) F(Log) F(Sqrt) F(Reciprocal) F(Sin) F(Cos) F(Tanh) F(Sigmoid) F(Erf)            \
  F(Softplus) F(HardSigmoid) F(LeakyRelu) F(Swish) F(Gelu) F(GeluTanh)
// clang-format on
#define WEIR_CUDA_ARITHMETIC(F) F(Add) F(Sub) F(Mul) F(Div) F(Min) F(Max) F(Pow)

enum class Unary {
#define WEIR_ENUM(Name) k##Name,
  WEIR_CUDA_UNARY(WEIR_ENUM)
};
enum class Binary { WEIR_CUDA_ARITHMETIC(WEIR_ENUM) };
#undef WEIR_ENUM
enum class Logic { kEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kAnd, kOr, kXor };

// y = f(x) and dx = dy * f'(x); alpha and beta are the op's attributes.
struct UnaryArguments {
  Unary function;
  float alpha = 0, beta = 0;
};
void ApplyUnary(UnaryArguments f, DType dtype, const void* x, int64_t count, void* y, CUstream_st* stream);
void ApplySlope(UnaryArguments f, DType dtype, const void* x, const void* dy, int64_t count, void* dx,
                CUstream_st* stream);
// Neg, Abs, Sign, Relu of int32 or int64.
void ApplyIntUnary(Unary function, DType dtype, const void* x, int64_t count, void* y, CUstream_st* stream);

// Result axes (outermost first) and the stride of each operand along them, 0 where it repeats.
struct BroadcastAxes {
  static constexpr int kMaxRank = 8, kMaxOperands = 3;
  int rank = 0;
  int64_t count = 0;  // elements of the result
  int64_t size[kMaxRank], stride[kMaxOperands][kMaxRank];
};
// Activations, int32 or int64. Pow also takes an exponent of another type: `exponent`.
void ApplyBinary(Binary function, DType dtype, DType exponent, const BroadcastAxes& axes, const void* a,
                 const void* b, void* y, CUstream_st* stream);
// y is bool; operands are activations, int32, int64 or bool of one type.
void ApplyLogic(Logic function, DType dtype, const BroadcastAxes& axes, const void* a, const void* b,
                uint8_t* y, CUstream_st* stream);
void ApplyNot(const uint8_t* x, int64_t count, uint8_t* y, CUstream_st* stream);
// y = condition ? a : b, elements of 1, 2, 4 or 8 bytes.
void ApplyWhere(const BroadcastAxes& axes, int element_bytes, const uint8_t* condition, const void* a,
                const void* b, void* y, CUstream_st* stream);
// y = min(max(x, *low), *high); either bound may be null. Activations, int32 or int64.
void ApplyClip(DType dtype, const void* x, int64_t count, const void* low, const void* high, void* y,
               CUstream_st* stream);
// y *= factor, in place.
void ApplyScale(DType dtype, void* y, int64_t count, float factor, CUstream_st* stream);

}  // namespace weir::cuda
