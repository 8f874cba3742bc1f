#include <algorithm>

#include "backend/kernel.h"
#include "kernels/common/infer.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/shape/range.h"

namespace weir {

std::pair<int64_t, int64_t> ShapeRange(const Attributes& attributes, int64_t rank) {
  const auto clamp = [&](int64_t axis) {
    return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const int64_t start = clamp(attributes.Int("start", 0)), end = clamp(attributes.Int("end", rank));
  return {start, std::max(start, end)};
}

namespace {

void InferShapeOp(InferContext& c) {
  if (!c.HasShape(0)) return SetUnknown(c, DType::kInt64, 1);
  const Shape& x = c.shape(0);
  const auto [start, end] = ShapeRange(c.node.attributes, Rank(x));
  c.SetOutput(0, DType::kInt64, {end - start});
  c.SetContent(0, Shape(x.begin() + start, x.begin() + end));
}

template <class T>
void ShapeReference(Eval<T>& e) {
  const Dims& x = e.x(0).dims;
  const auto [start, end] = ShapeRange(e.attributes, Rank(x));
  e.out[0] = Array<T>::Ints({end - start});
  std::copy(x.begin() + start, x.begin() + end, e.out[0].i.begin());
}

void LaunchShape(KernelContext& c) {
  const Dims& x = c.inputs[0].dims;
  const auto [start, end] = ShapeRange(c.attributes(), Rank(x));
  std::copy(x.begin() + start, x.begin() + end, c.outputs[0].data<int64_t>());
}

void InferSize(InferContext& c) {
  c.SetOutput(0, DType::kInt64, {});
  if (c.HasShape(0)) c.SetContent(0, {Product(c.shape(0))});
}

template <class T>
void SizeReference(Eval<T>& e) {
  e.out[0] = Array<T>::Ints({}, DType::kInt64, e.x(0).elements());
}

void LaunchSize(KernelContext& c) { *c.outputs[0].data<int64_t>() = c.inputs[0].elements(); }

}  // namespace

const OpSchema& ShapeSchema() {
  static const OpSchema schema{
      .name = "Shape",
      .doc =
          "y = dims(x)[start:end]; start and end count from the back when negative and are\n"
          "clamped.\n"
          "x: any; y: int64 [end - start].  Source: ONNX Shape-15.",
      .infer = InferShapeOp,
      WEIR_REFERENCE(ShapeReference),
      .cases = []() -> std::vector<OpCase> {
        return {{"scalar", {{.dims = {}}}},
                {"empty", {{.dims = {0, 3}}}},
                {"range", {{.dims = {2, 3, 5, 7}}}, {{"start", int64_t{-3}}, {"end", int64_t{3}}}},
                {"clamped", {{.dims = {2, 3}}}, {{"start", int64_t{-9}}, {"end", int64_t{9}}}},
                {"crossed", {{.dims = {2, 3}}}, {{"start", int64_t{2}}, {"end", int64_t{1}}}}};
      },
      .nondifferentiable_inputs = {0},
  };
  return schema;
}

const OpSchema& SizeSchema() {
  static const OpSchema schema{
      .name = "Size",
      .doc = "y = number of elements of x. x: any; y: int64 scalar.  Source: ONNX Size-13.",
      .infer = InferSize,
      WEIR_REFERENCE(SizeReference),
      .cases = []() -> std::vector<OpCase> {
        return {
            {"scalar", {{.dims = {}}}}, {"odd", {{.dims = {3, 5}}}}, {"empty", {{.dims = {0, 3}}}}};
      },
      .nondifferentiable_inputs = {0},
  };
  return schema;
}

const Kernel& ShapeCpuKernel() {
  static const Kernel kernel{.launch = LaunchShape};
  return kernel;
}

const Kernel& SizeCpuKernel() {
  static const Kernel kernel{.launch = LaunchSize};
  return kernel;
}

}  // namespace weir
