// Broadcasting float kernels of the arithmetic ops; other dtypes run the reference.
#include <algorithm>
#include <limits>

#include "backend/cpu/parallel.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/elementwise/binary_loops.h"
#include "kernels/elementwise/broadcast.h"

namespace weir {
namespace {

constexpr int64_t kGrain = 1 << 14;
constexpr int64_t kBlock = 512;  // elements folded at a time over more than two inputs

BroadcastRows PlanInputs(const KernelContext& c) {
  std::vector<const Dims*> dims;
  for (const Tensor& input : c.inputs) dims.push_back(&input.dims);
  return PlanBroadcast(c.outputs[0].dims, dims);
}

bool AllFloat(const KernelContext& c) {
  return std::all_of(c.inputs.begin(), c.inputs.end(),
                     [](const Tensor& t) { return t.dtype == DType::kFloat32; });
}

template <BinaryLoop loop>
void LaunchBinary(KernelContext& c) {
  if (!AllFloat(c)) return LaunchReference(c);
  const BroadcastRows rows = PlanInputs(c);
  const float *a = c.inputs[0].data<float>(), *b = c.inputs[1].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(c.outputs[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachPiece(rows, begin, end, [&](int64_t first, const int64_t* at, int64_t count) {
      loop(a + at[0], rows.row_stride[0], b + at[1], rows.row_stride[1], count, y + first);
    });
  });
}

// Folds all inputs block by block in a local buffer: y may be any input of its own size.
template <BinaryLoop loop, bool mean>
void LaunchFold(KernelContext& c) {
  if (c.inputs.size() == 2 && !mean) return LaunchBinary<loop>(c);
  if (!AllFloat(c)) return LaunchReference(c);
  const BroadcastRows rows = PlanInputs(c);
  const float scale = 1.0f / static_cast<float>(c.inputs.size());
  float* y = c.outputs[0].data<float>();
  ParallelFor(c.outputs[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    float block[kBlock];
    for (int64_t from = begin; from < end; from += kBlock) {
      ForEachPiece(rows, from, std::min(end, from + kBlock),
                   [&](int64_t first, const int64_t* at, int64_t count) {
                     for (int64_t k = 0; k < count; ++k)
                       block[k] = c.inputs[0].data<float>()[at[0] + k * rows.row_stride[0]];
                     for (size_t i = 1; i < c.inputs.size(); ++i) {
                       loop(block, 1, c.inputs[i].data<float>() + at[i], rows.row_stride[i], count,
                            block);
                     }
                     for (int64_t k = 0; k < count; ++k)
                       y[first + k] = mean ? block[k] * scale : block[k];
                   });
    }
  });
}

// Comparisons of float32 and of int64.
template <FloatCompareLoop float_loop, IntCompareLoop int_loop>
void LaunchCompare(KernelContext& c) {
  const DType dtype = c.inputs[0].dtype;
  if (dtype != DType::kFloat32 && dtype != DType::kInt64) return LaunchReference(c);
  const BroadcastRows rows = PlanInputs(c);
  uint8_t* y = c.outputs[0].data<uint8_t>();
  const auto run = [&](auto loop, const auto* a, const auto* b) {
    ParallelFor(c.outputs[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
      ForEachPiece(rows, begin, end, [&](int64_t first, const int64_t* at, int64_t count) {
        loop(a + at[0], rows.row_stride[0], b + at[1], rows.row_stride[1], count, y + first);
      });
    });
  };
  if (dtype == DType::kFloat32) {
    run(float_loop, c.inputs[0].data<float>(), c.inputs[1].data<float>());
  } else {
    run(int_loop, c.inputs[0].data<int64_t>(), c.inputs[1].data<int64_t>());
  }
}

void LaunchWhere(KernelContext& c) {
  if (c.inputs[1].dtype != DType::kFloat32) return LaunchReference(c);
  const BroadcastRows rows = PlanInputs(c);
  const uint8_t* condition = c.inputs[0].data<uint8_t>();
  const float *a = c.inputs[1].data<float>(), *b = c.inputs[2].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(c.outputs[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    ForEachPiece(rows, begin, end, [&](int64_t first, const int64_t* at, int64_t count) {
      SelectLoop(condition + at[0], rows.row_stride[0], {a + at[1], rows.row_stride[1]},
                 {b + at[2], rows.row_stride[2]}, count, y + first);
    });
  });
}

void LaunchClip(KernelContext& c) {
  if (c.inputs[0].dtype != DType::kFloat32) return LaunchReference(c);
  const float low =
      c.has(1) ? c.inputs[1].data<float>()[0] : -std::numeric_limits<float>::infinity();
  const float high =
      c.has(2) ? c.inputs[2].data<float>()[0] : std::numeric_limits<float>::infinity();
  const float* x = c.inputs[0].data<float>();
  float* y = c.outputs[0].data<float>();
  ParallelFor(c.outputs[0].elements(), kGrain, [&](int64_t begin, int64_t end) {
    ClipLoop(x + begin, end - begin, low, high, y + begin);
  });
}

}  // namespace

#define WEIR_KERNEL(Name, function)                 \
  const Kernel& Name##CpuKernel() {                 \
    static const Kernel kernel{.launch = function}; \
    return kernel;                                  \
  }
WEIR_KERNEL(Add, LaunchBinary<AddLoop>)
WEIR_KERNEL(Sub, LaunchBinary<SubLoop>)
WEIR_KERNEL(Mul, LaunchBinary<MulLoop>)
WEIR_KERNEL(Div, LaunchBinary<DivLoop>)
WEIR_KERNEL(Pow, LaunchBinary<PowLoop>)
WEIR_KERNEL(Min, (LaunchFold<MinLoop, false>))
WEIR_KERNEL(Max, (LaunchFold<MaxLoop, false>))
WEIR_KERNEL(Sum, (LaunchFold<AddLoop, false>))
WEIR_KERNEL(Mean, (LaunchFold<AddLoop, true>))
WEIR_KERNEL(Where, LaunchWhere)
WEIR_KERNEL(Clip, LaunchClip)
#define WEIR_COMPARE_KERNEL(Name) WEIR_KERNEL(Name, (LaunchCompare<Name##FloatLoop, Name##IntLoop>))
WEIR_COMPARE_KERNEL(Equal)
WEIR_COMPARE_KERNEL(Less)
WEIR_COMPARE_KERNEL(LessOrEqual)
WEIR_COMPARE_KERNEL(Greater)
WEIR_COMPARE_KERNEL(GreaterOrEqual)
#undef WEIR_COMPARE_KERNEL
#undef WEIR_KERNEL

WEIR_REFERENCE_CPU_KERNEL(Mod)
WEIR_REFERENCE_CPU_KERNEL(And)
WEIR_REFERENCE_CPU_KERNEL(Or)
WEIR_REFERENCE_CPU_KERNEL(Xor)
WEIR_REFERENCE_CPU_KERNEL(Not)
WEIR_REFERENCE_CPU_KERNEL(BitwiseAnd)
WEIR_REFERENCE_CPU_KERNEL(BitwiseOr)
WEIR_REFERENCE_CPU_KERNEL(BitwiseNot)
WEIR_REFERENCE_CPU_KERNEL(IsNaN)
WEIR_REFERENCE_CPU_KERNEL(IsInf)

}  // namespace weir
