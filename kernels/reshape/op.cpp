#include "kernels/common/cases.h"
#include "kernels/common/copy_kernel.h"
#include "kernels/common/infer.h"
#include "kernels/reshape/shapes.h"

namespace weir {
namespace {

using Axes = std::vector<int64_t>;

void SetShape(InferContext& c, Shape shape) {
  c.SetOutput(0, c.in(0)->dtype, std::move(shape));
  CopyContent(c);
}

void InferReshape(InferContext& c) {
  const auto target = Content(c, 1);
  if (!target || !c.HasShape(0)) {
    SetUnknown(c, c.in(0)->dtype, LengthOf(c, 1));
    return CopyContent(c);
  }
  SetShape(c, ReshapedShape(c.shape(0), *target, c.node.attributes.Int("allowzero", 0) != 0));
}

void InferSqueeze(InferContext& c) {
  const auto axes = ConstantContent(c, 1);
  const bool known = c.HasShape(0) && (c.in(1) == nullptr || axes);
  // Without axes an unknown size might be 1, so the rank is unknown as well.
  if (known && (axes || IsKnown(c.shape(0)))) return SetShape(c, SqueezedShape(c.shape(0), axes));
  c.SetDType(0, c.in(0)->dtype);
  CopyContent(c);
}

void InferUnsqueeze(InferContext& c) {
  const auto axes = ConstantContent(c, 1);
  if (axes && c.HasShape(0)) return SetShape(c, UnsqueezedShape(c.shape(0), *axes));
  c.SetDType(0, c.in(0)->dtype);
  CopyContent(c);
}

void InferFlatten(InferContext& c) {
  if (c.HasShape(0))
    return SetShape(c, FlattenedShape(c.shape(0), c.node.attributes.Int("axis", 1)));
  SetUnknown(c, c.in(0)->dtype, 2);
}

void InferIdentity(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (c.HasShape(0)) c.SetOutput(0, c.in(0)->dtype, c.shape(0));
  CopyContent(c);
}

// Inference only: the ratio is not applied, the mask is all true.
void InferDropout(InferContext& c) {
  InferIdentity(c);
  c.SetDType(1, DType::kBool);
  if (c.HasShape(0)) c.SetOutput(1, DType::kBool, c.shape(0));
}

template <class T>
void CopyAs(Eval<T>& e, const Shape& shape) {
  e.out[0] = e.x(0);
  e.out[0].dims = ToDims(shape);
}

template <class T>
std::optional<Axes> AxesOf(const Eval<T>& e) {
  return e.has(1) ? std::optional<Axes>(IntsOf(e, 1)) : std::nullopt;
}

template <class T>
void ReshapeReference(Eval<T>& e) {
  CopyAs(e, ReshapedShape(ToShape(e.x(0).dims), ToShape(IntsOf(e, 1)),
                          e.attributes.Int("allowzero", 0) != 0));
}

template <class T>
void SqueezeReference(Eval<T>& e) {
  CopyAs(e, SqueezedShape(ToShape(e.x(0).dims), AxesOf(e)));
}

template <class T>
void UnsqueezeReference(Eval<T>& e) {
  CopyAs(e, UnsqueezedShape(ToShape(e.x(0).dims), IntsOf(e, 1)));
}

template <class T>
void FlattenReference(Eval<T>& e) {
  CopyAs(e, FlattenedShape(ToShape(e.x(0).dims), e.attributes.Int("axis", 1)));
}

template <class T>
void IdentityReference(Eval<T>& e) {
  e.out[0] = e.x(0);
  // Only Dropout has a second output.
  if (e.out.size() > 1) e.out[1] = Array<T>::Ints(e.x(0).dims, DType::kBool, 1);
}

void ReshapeGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  g.Add(0, g.builder.Op("Reshape", {dy, ShapeOf(g.builder, g.in(0))}, {{"allowzero", int64_t{1}}}));
}

void IdentityGradient(GradientContext& g) {
  if (g.OutputGradient(0) != nullptr && g.Needs(0)) g.Add(0, g.OutputGradient(0));
}

void LaunchDropout(KernelContext& c) {
  LaunchCopy(c);
  if (c.outputs.size() < 2 || !c.outputs[1]) return;
  std::fill_n(c.outputs[1].data<uint8_t>(), c.outputs[1].elements(), uint8_t{1});
}

std::vector<OpCase> ReshapeCases() {
  return {{"infer", {{.dims = {2, 3, 8}}, IntsInput({0, -1, 4})}},
          {"to_scalar", {{.dims = {1, 1}}, IntsInput({})}},
          {"from_scalar", {{.dims = {}}, IntsInput({1, -1})}},
          {"empty", {{.dims = {0, 3, 4}}, IntsInput({-1, 12})}},
          {"empty_copied", {{.dims = {0, 3, 4}}, IntsInput({0, -1})}},
          {"allowzero", {{.dims = {3, 0}}, IntsInput({0, 7})}, {{"allowzero", int64_t{1}}}},
          {"ints",
           {{.kind = CaseInput::Kind::kInts, .dims = {2, 2}, .ints = {1, 2, 3, 4}}, IntsInput({4})},
           {},
           1,
           false}};
}

}  // namespace

const OpSchema& ReshapeSchema() {
  static const OpSchema schema{
      .name = "Reshape",
      .doc =
          "y holds the elements of x in order under other dims. shape entries: a size, 0 = the\n"
          "size of x there (a size with allowzero = 1), at most one -1 = what is left.\n"
          "x: any [...]; shape: int64 [r]; y like x [r dims].  Source: ONNX Reshape-21.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferReshape,
      WEIR_REFERENCE(ReshapeReference),
      .gradient = ReshapeGradient,
      .cases = ReshapeCases,
      .view = true,
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& SqueezeSchema() {
  static const OpSchema schema{
      .name = "Squeeze",
      .doc =
          "Drops axes of size 1: those in axes (negative from the back), all of them without\n"
          "axes.\n"
          "x: any; axes: int64 [k] optional.  Source: ONNX Squeeze-21.",
      .min_inputs = 1,
      .max_inputs = 2,
      .infer = InferSqueeze,
      WEIR_REFERENCE(SqueezeReference),
      .gradient = ReshapeGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"all", {{.dims = {1, 3, 1}}}},
                {"negative", {{.dims = {1, 3, 1}}, IntsInput({-1})}},
                {"none_listed", {{.dims = {1, 3}}, IntsInput({})}},
                {"empty", {{.dims = {1, 0}}, IntsInput({0})}}};
      },
      .view = true,
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& UnsqueezeSchema() {
  static const OpSchema schema{
      .name = "Unsqueeze",
      .doc =
          "Inserts axes of size 1 where axes say, counted in the result.\n"
          "x: any; axes: int64 [k].  Source: ONNX Unsqueeze-21.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferUnsqueeze,
      WEIR_REFERENCE(UnsqueezeReference),
      .gradient = ReshapeGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"scalar", {{.dims = {}}, IntsInput({0})}},
                {"both_ends", {{.dims = {3, 5}}, IntsInput({-1, 0})}},
                {"empty", {{.dims = {0, 5}}, IntsInput({1})}}};
      },
      .view = true,
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

const OpSchema& FlattenSchema() {
  static const OpSchema schema{
      .name = "Flatten",
      .doc =
          "y: [product of dims before axis, product of the rest]; axis in [-r, r].\n"
          "Source: ONNX Flatten-21.",
      .infer = InferFlatten,
      WEIR_REFERENCE(FlattenReference),
      .gradient = ReshapeGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"middle", {{.dims = {2, 3, 5}}}},
                {"scalar", {{.dims = {}}}, {{"axis", int64_t{0}}}},
                {"negative", {{.dims = {2, 3, 5}}}, {{"axis", int64_t{-1}}}},
                {"end", {{.dims = {2, 0, 5}}}, {{"axis", int64_t{3}}}}};
      },
      .view = true,
  };
  return schema;
}

const OpSchema& IdentitySchema() {
  static const OpSchema schema{
      .name = "Identity",
      .doc = "y = x.  Source: ONNX Identity-21.",
      .infer = InferIdentity,
      WEIR_REFERENCE(IdentityReference),
      .gradient = IdentityGradient,
      .cases = []() -> std::vector<OpCase> {
        return {
            {"odd", {{.dims = {3, 7}}}}, {"scalar", {{.dims = {}}}}, {"empty", {{.dims = {0}}}}};
      },
      .view = true,
  };
  return schema;
}

const OpSchema& DropoutSchema() {
  static const OpSchema schema{
      .name = "Dropout",
      .doc =
          "y = x, mask (optional) = true: a file's Dropout is read as inference whatever its\n"
          "ratio.\n"
          "inputs x, ratio?, training_mode?.  Source: ONNX Dropout-22, training_mode = false.",
      .min_inputs = 1,
      .max_inputs = 3,
      .min_outputs = 1,
      .max_outputs = 2,
      .infer = InferDropout,
      WEIR_REFERENCE(IdentityReference),
      .gradient = IdentityGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"plain", {{.dims = {3, 7}}}}, {"mask", {{.dims = {2, 3}}}, {}, 2}};
      },
      .view = true,
      .nondifferentiable_inputs = {1, 2},
  };
  return schema;
}

WEIR_COPY_CPU_KERNEL(Reshape)
WEIR_COPY_CPU_KERNEL(Squeeze)
WEIR_COPY_CPU_KERNEL(Unsqueeze)
WEIR_COPY_CPU_KERNEL(Flatten)
WEIR_COPY_CPU_KERNEL(Identity)

const Kernel& DropoutCpuKernel() {
  static const Kernel kernel{.launch = LaunchDropout};
  return kernel;
}

}  // namespace weir
