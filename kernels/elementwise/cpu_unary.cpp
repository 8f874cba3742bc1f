#include <map>
#include <string>

#include "backend/cpu/parallel.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/elementwise/unary_loops.h"
#include "kernels/elementwise/visit_function.h"

namespace weir {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements per thread below which a thread is not worth waking

FunctionArguments Arguments(const KernelContext& c, FunctionArguments fallback) {
  return {static_cast<float>(c.attributes().Float("alpha", fallback.alpha)),
          static_cast<float>(c.attributes().Float("beta", fallback.beta))};
}

void RunLoop(KernelContext& c, UnaryLoop loop, FunctionArguments fallback) {
  const FunctionArguments arguments = Arguments(c, fallback);
  const float* x = c.inputs[0].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(c.outputs[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    loop(x + begin, end - begin, arguments, y + begin);
  });
}

template <UnaryLoop loop, float alpha = 0.0f, float beta = 0.0f>
void LaunchLoop(KernelContext& c) {
  if (c.inputs[0].dtype != DType::kFloat32) return LaunchReference(c);
  RunLoop(c, loop, {alpha, beta});
}

// One element at a time through the scalar function.
template <class Function>
void LaunchScalar(KernelContext& c) {
  if (c.inputs[0].dtype != DType::kFloat32) return LaunchReference(c);
  const Function function(c.attributes());
  const float* x = c.inputs[0].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(c.outputs[0].elements(), kGrain / 16, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) y[k] = function(x[k]);
  });
}

bool IsTanh(const KernelContext& c) {
  return c.attributes().String("approximate", "none") == "tanh";
}

void LaunchGelu(KernelContext& c) {
  if (c.inputs[0].dtype != DType::kFloat32) return LaunchReference(c);
  IsTanh(c) ? RunLoop(c, GeluTanhLoop, {}) : LaunchScalar<GeluFunction>(c);
}

void LaunchUnaryGradient(KernelContext& c) {
  static const std::map<std::string, SlopeLoop> loops = {{"Abs", AbsSlopeLoop},
                                                         {"Relu", ReluSlopeLoop},
                                                         {"Log", LogSlopeLoop},
                                                         {"Sqrt", SqrtSlopeLoop},
                                                         {"Reciprocal", ReciprocalSlopeLoop},
                                                         {"Tanh", TanhSlopeLoop},
                                                         {"Sigmoid", SigmoidSlopeLoop},
                                                         {"Softplus", SoftplusSlopeLoop},
                                                         {"LeakyRelu", LeakyReluSlopeLoop},
                                                         {"Swish", SwishSlopeLoop}};
  const std::string name = c.attributes().String("function", "");
  const auto it = loops.find(name);
  const SlopeLoop loop = it != loops.end()             ? it->second
                         : name == "Gelu" && IsTanh(c) ? GeluTanhSlopeLoop
                                                       : nullptr;
  const float *x = c.inputs[0].data<float>(), *dy = c.inputs[1].data<float>();
  float* dx = c.outputs[0].data<float>();
  const int64_t count = c.outputs[0].elements();
  if (loop != nullptr) {
    const FunctionArguments arguments = Arguments(c, {name == "Swish" ? 1.0f : 0.01f, 0});
    return ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
      loop(x + begin, dy + begin, end - begin, arguments, dx + begin);
    });
  }
  VisitFunction(name, c.attributes(), [&](const auto& function) {
    ParallelFor(count, kGrain / 16, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) dx[k] = dy[k] * function.Slope(x[k]);
    });
  });
}

}  // namespace

#define WEIR_KERNEL(Name, function)                 \
  const Kernel& Name##CpuKernel() {                 \
    static const Kernel kernel{.launch = function}; \
    return kernel;                                  \
  }
WEIR_KERNEL(Neg, LaunchLoop<NegLoop>)
WEIR_KERNEL(Abs, LaunchLoop<AbsLoop>)
WEIR_KERNEL(Relu, LaunchLoop<ReluLoop>)
WEIR_KERNEL(Exp, LaunchLoop<ExpLoop>)
WEIR_KERNEL(Sqrt, LaunchLoop<SqrtLoop>)
WEIR_KERNEL(Reciprocal, LaunchLoop<ReciprocalLoop>)
WEIR_KERNEL(Tanh, LaunchLoop<TanhLoop>)
WEIR_KERNEL(Sigmoid, LaunchLoop<SigmoidLoop>)
WEIR_KERNEL(HardSigmoid, (LaunchLoop<HardSigmoidLoop, 0.2f, 0.5f>))
WEIR_KERNEL(LeakyRelu, (LaunchLoop<LeakyReluLoop, 0.01f>))
WEIR_KERNEL(Swish, (LaunchLoop<SwishLoop, 1.0f>))
WEIR_KERNEL(Gelu, LaunchGelu)
WEIR_KERNEL(Sign, LaunchScalar<SignFunction>)
WEIR_KERNEL(Log, LaunchScalar<LogFunction>)
WEIR_KERNEL(Floor, LaunchScalar<FloorFunction>)
WEIR_KERNEL(Ceil, LaunchScalar<CeilFunction>)
WEIR_KERNEL(Round, LaunchScalar<RoundFunction>)
WEIR_KERNEL(Sin, LaunchScalar<SinFunction>)
WEIR_KERNEL(Cos, LaunchScalar<CosFunction>)
WEIR_KERNEL(Erf, LaunchScalar<ErfFunction>)
WEIR_KERNEL(Softplus, LaunchScalar<SoftplusFunction>)
WEIR_KERNEL(UnaryGradient, LaunchUnaryGradient)
#undef WEIR_KERNEL

}  // namespace weir
