#include "kernels/elementwise/cuda.h"

#include <map>
#include <string>

#include "backend/cuda/cuda_stream.h"
#include "graph/error.h"
#include "kernels/device/copy.h"
#include "kernels/device/types.h"
#include "kernels/elementwise/broadcast.h"

namespace weir {
namespace {

using cuda::Binary, cuda::BroadcastAxes, cuda::Logic, cuda::Unary, cuda::UnaryArguments;

// ---- One operand ----

UnaryArguments Arguments(const KernelContext& c, Unary function) {
  const double alpha = function == Unary::kSwish ? 1 : function == Unary::kHardSigmoid ? 0.2f : 0.01f;
  return {function, static_cast<float>(c.attributes().Float("alpha", alpha)),
          static_cast<float>(c.attributes().Float("beta", 0.5f))};
}

template <Unary function>
void LaunchUnary(KernelContext& c) {
  const Tensor &x = c.inputs[0], &y = c.outputs[0];
  if (IsInteger(x.dtype))
    return cuda::ApplyIntUnary(function, x.dtype, x.bytes, y.elements(), y.bytes, CudaQueue(c).stream);
  cuda::ApplyUnary(Arguments(c, function), x.dtype, x.bytes, y.elements(), y.bytes, CudaQueue(c).stream);
}

bool IsTanh(const KernelContext& c) { return c.attributes().String("approximate", "none") == "tanh"; }

void LaunchGelu(KernelContext& c) {
  IsTanh(c) ? LaunchUnary<Unary::kGeluTanh>(c) : LaunchUnary<Unary::kGelu>(c);
}

void LaunchUnaryGradient(KernelContext& c) {
  static const std::map<std::string, Unary> functions = {
#define WEIR_ENTRY(Name) {#Name, Unary::k##Name},
      WEIR_CUDA_SLOPES(WEIR_ENTRY)
#undef WEIR_ENTRY
  };
  const std::string name = c.attributes().String("function", "");
  const auto it = functions.find(name == "Gelu" && IsTanh(c) ? "GeluTanh" : name);
  WEIR_CHECK(it != functions.end(), ErrorCode::kInvalidModel, "UnaryGradient: no function '", name, "'");
  cuda::ApplySlope(Arguments(c, it->second), c.inputs[0].dtype, c.inputs[0].bytes, c.inputs[1].bytes,
                   c.outputs[0].elements(), c.outputs[0].bytes, CudaQueue(c).stream);
}

// ---- Two and three operands ----

BroadcastAxes AxesOf(const KernelContext& c, std::initializer_list<const Tensor*> operands) {
  std::vector<const Dims*> dims;
  for (const Tensor* operand : operands) dims.push_back(&operand->dims);
  const BroadcastRows rows = PlanBroadcast(c.outputs[0].dims, dims);
  WEIR_CHECK(rows.dims.size() < BroadcastAxes::kMaxRank, ErrorCode::kUnsupportedOp, c.node.op(),
             ": broadcasts over more than ", BroadcastAxes::kMaxRank, " axes");
  BroadcastAxes axes;
  axes.count = c.outputs[0].elements();
  const auto add = [&](int64_t size) { axes.size[axes.rank++] = size; };
  for (const int64_t size : rows.dims) add(size);
  if (rows.length != 1 || axes.rank > 0) add(rows.length);
  for (size_t o = 0; o < dims.size(); ++o) {
    for (size_t i = 0; i < rows.dims.size(); ++i) axes.stride[o][i] = rows.strides[o][i];
    if (axes.rank > 0) axes.stride[o][axes.rank - 1] = rows.row_stride[o];
  }
  return axes;
}

template <Binary function>
void LaunchBinary(KernelContext& c) {
  const Tensor &a = c.inputs[0], &b = c.inputs[1];
  cuda::ApplyBinary(function, a.dtype, b.dtype, AxesOf(c, {&a, &b}), a.bytes, b.bytes, c.outputs[0].bytes,
                    CudaQueue(c).stream);
}

// Of one or two operands: a third could sit in y's buffer, which the first result would overwrite.
template <Binary function, bool mean>
void LaunchFold(KernelContext& c) {
  const Tensor& y = c.outputs[0];
  c.inputs.size() == 1 ? LaunchDeviceCopy(c) : LaunchBinary<function>(c);
  if (mean)
    cuda::ApplyScale(y.dtype, y.bytes, y.elements(), 1.0f / static_cast<float>(c.inputs.size()),
                     CudaQueue(c).stream);
}

std::string RefuseFold(const Node& node) {
  if (node.inputs.size() > 2) return "more than two operands";
  return RefuseAllButNumbers(node);
}
std::string RefuseMean(const Node& node) {
  if (node.inputs.size() > 2) return "more than two operands";
  return RefuseAllButActivations(node);
}

template <Logic function>
void LaunchLogic(KernelContext& c) {
  cuda::ApplyLogic(function, c.inputs[0].dtype, AxesOf(c, {&c.inputs[0], &c.inputs[1]}), c.inputs[0].bytes,
                   c.inputs[1].bytes, c.outputs[0].data<uint8_t>(), CudaQueue(c).stream);
}

std::string RefuseComparison(const Node& node) {
  return TypeOf(node, 0) == DType::kBool || TypeOf(node, 0) == DType::kUInt8 ? "" : RefuseAllButNumbers(node);
}

void LaunchNot(KernelContext& c) {
  cuda::ApplyNot(c.inputs[0].data<uint8_t>(), c.outputs[0].elements(), c.outputs[0].data<uint8_t>(),
                 CudaQueue(c).stream);
}

void LaunchWhere(KernelContext& c) {
  cuda::ApplyWhere(AxesOf(c, {&c.inputs[0], &c.inputs[1], &c.inputs[2]}),
                   static_cast<int>(BytesOf(c.inputs[1].dtype, 1)), c.inputs[0].data<uint8_t>(),
                   c.inputs[1].bytes, c.inputs[2].bytes, c.outputs[0].bytes, CudaQueue(c).stream);
}
std::string RefuseWhere(const Node& node) { return RefuseType(node, 1, BitsOf(TypeOf(node, 1)) >= 8); }

void LaunchClip(KernelContext& c) {
  const auto bound = [&](size_t i) { return c.has(i) ? c.inputs[i].bytes : nullptr; };
  cuda::ApplyClip(c.inputs[0].dtype, c.inputs[0].bytes, c.outputs[0].elements(), bound(1), bound(2),
                  c.outputs[0].bytes, CudaQueue(c).stream);
}

std::string RefusePow(const Node& node) {
  const DType base = TypeOf(node, 0), exponent = TypeOf(node, 1);
  const bool supported =
      base == exponent ? IsActivation(base) || IsInteger(base) : IsActivation(base) && IsInteger(exponent);
  return RefuseType(node, 1, supported);
}

}  // namespace

#define WEIR_FLOAT_KERNEL(Name) \
  WEIR_CUDA_KERNEL(Name, .launch = LaunchUnary<Unary::k##Name>, .unsupported = RefuseAllButActivations)
#define WEIR_SIGNED_KERNEL(Name) \
  WEIR_CUDA_KERNEL(Name, .launch = LaunchUnary<Unary::k##Name>, .unsupported = RefuseAllButNumbers)
WEIR_SIGNED_KERNEL(Neg)
WEIR_SIGNED_KERNEL(Abs)
WEIR_SIGNED_KERNEL(Sign)
WEIR_SIGNED_KERNEL(Relu)
WEIR_FLOAT_KERNEL(Exp)
WEIR_FLOAT_KERNEL(Log)
WEIR_FLOAT_KERNEL(Sqrt)
WEIR_FLOAT_KERNEL(Reciprocal)
WEIR_FLOAT_KERNEL(Floor)
WEIR_FLOAT_KERNEL(Ceil)
WEIR_FLOAT_KERNEL(Round)
WEIR_FLOAT_KERNEL(Sin)
WEIR_FLOAT_KERNEL(Cos)
WEIR_FLOAT_KERNEL(Tanh)
WEIR_FLOAT_KERNEL(Sigmoid)
WEIR_FLOAT_KERNEL(Erf)
WEIR_FLOAT_KERNEL(Softplus)
WEIR_FLOAT_KERNEL(HardSigmoid)
WEIR_FLOAT_KERNEL(LeakyRelu)
WEIR_FLOAT_KERNEL(Swish)
WEIR_CUDA_KERNEL(Gelu, .launch = LaunchGelu, .unsupported = RefuseAllButActivations)
WEIR_CUDA_KERNEL(UnaryGradient, .launch = LaunchUnaryGradient, .unsupported = RefuseAllButActivations)

#define WEIR_BINARY_KERNEL(Name) \
  WEIR_CUDA_KERNEL(Name, .launch = LaunchBinary<Binary::k##Name>, .unsupported = RefuseAllButNumbers)
WEIR_BINARY_KERNEL(Add)
WEIR_BINARY_KERNEL(Sub)
WEIR_BINARY_KERNEL(Mul)
WEIR_BINARY_KERNEL(Div)
WEIR_CUDA_KERNEL(Pow, .launch = LaunchBinary<Binary::kPow>, .unsupported = RefusePow)
WEIR_CUDA_KERNEL(Min, .launch = LaunchFold<Binary::kMin, false>, .unsupported = RefuseFold)
WEIR_CUDA_KERNEL(Max, .launch = LaunchFold<Binary::kMax, false>, .unsupported = RefuseFold)
WEIR_CUDA_KERNEL(Sum, .launch = LaunchFold<Binary::kAdd, false>, .unsupported = RefuseFold)
WEIR_CUDA_KERNEL(Mean, .launch = LaunchFold<Binary::kAdd, true>, .unsupported = RefuseMean)

#define WEIR_LOGIC_KERNEL(Name) \
  WEIR_CUDA_KERNEL(Name, .launch = LaunchLogic<Logic::k##Name>, .unsupported = RefuseComparison)
WEIR_LOGIC_KERNEL(Equal)
WEIR_LOGIC_KERNEL(Less)
WEIR_LOGIC_KERNEL(LessOrEqual)
WEIR_LOGIC_KERNEL(Greater)
WEIR_LOGIC_KERNEL(GreaterOrEqual)
WEIR_LOGIC_KERNEL(And)
WEIR_LOGIC_KERNEL(Or)
WEIR_LOGIC_KERNEL(Xor)
WEIR_CUDA_KERNEL(Not, .launch = LaunchNot)
WEIR_CUDA_KERNEL(Where, .launch = LaunchWhere, .unsupported = RefuseWhere)
WEIR_CUDA_KERNEL(Clip, .launch = LaunchClip, .unsupported = RefuseAllButNumbers)

}  // namespace weir
