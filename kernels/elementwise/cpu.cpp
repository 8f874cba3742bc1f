#include "kernels/common/reference_kernel.h"

namespace weir {

#define OP(Name) WEIR_REFERENCE_CPU_KERNEL(Name)
OP(Add) OP(Sub) OP(Mul) OP(Div) OP(Pow) OP(Mod) OP(Min) OP(Max) OP(Sum) OP(Mean)
OP(Neg) OP(Abs) OP(Sign) OP(Exp) OP(Log) OP(Sqrt) OP(Reciprocal) OP(Floor) OP(Ceil) OP(Round) OP(Sin) OP(Cos)
OP(Tanh) OP(Sigmoid) OP(Relu) OP(Gelu) OP(Erf) OP(Softplus) OP(HardSigmoid) OP(LeakyRelu) OP(Swish)
OP(Equal) OP(Less) OP(LessOrEqual) OP(Greater) OP(GreaterOrEqual) OP(And) OP(Or) OP(Xor) OP(Not)
OP(BitwiseAnd) OP(BitwiseOr) OP(BitwiseNot) OP(IsNaN) OP(IsInf) OP(Where) OP(Clip) OP(UnaryGradient)
#undef OP

}  // namespace weir
