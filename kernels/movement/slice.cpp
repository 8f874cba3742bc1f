#include <limits>

#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/movement/slice_axes.h"

namespace weir {
namespace {

// Inputs of Slice from number `first` on: starts, ends, axes?, steps?.
template <class T>
std::vector<SliceAxis> SlicesOf(const Eval<T>& e, const Dims& x, size_t first) {
  const std::vector<int64_t> none;
  return ResolveSlices(ToShape(x), ToShape(IntsOf(e, first)), ToShape(IntsOf(e, first + 1)),
                       e.has(first + 2) ? IntsOf(e, first + 2) : none,
                       e.has(first + 3) ? IntsOf(e, first + 3) : none);
}

// Unknown elements of the right number when only the count is known.
std::optional<Shape> BoundsOf(const InferContext& c, size_t i) {
  if (auto content = Content(c, i)) return content;
  const int64_t count = LengthOf(c, i);
  if (count < 0 || count > kMaxContent) return std::nullopt;
  return Shape(static_cast<size_t>(count));
}

void InferSlice(InferContext& c) {
  for (size_t i = 1; i < 5; ++i) RequireInts(c, i);
  if (!c.HasShape(0)) return c.SetDType(0, c.in(0)->dtype);
  const Shape& x = c.shape(0);
  const auto starts = BoundsOf(c, 1), ends = BoundsOf(c, 2);
  const auto axes = ConstantContent(c, 3), steps = ConstantContent(c, 4);
  if (!starts || !ends || (c.in(3) && !axes) || (c.in(4) && !steps)) {
    return SetUnknown(c, c.in(0)->dtype, Rank(x));
  }
  const auto slices = ResolveSlices(x, *starts, *ends, axes.value_or(std::vector<int64_t>{}),
                                    steps.value_or(std::vector<int64_t>{}));
  c.SetOutput(0, c.in(0)->dtype, SlicedShape(slices));
  for (const SliceAxis& axis : slices) {
    if (!axis.start.IsConstant()) return;
  }
  if (CarriesContent(c)) MapContent(c, SliceMap(ToDims(x), slices));
}

void InferSliceGradient(InferContext& c) {
  for (size_t i = 2; i < 6; ++i) RequireInts(c, i);
  InferFromShapeInput(c, 1);
}

template <class T>
void SliceReference(Eval<T>& e) {
  e.out[0] = Take(e.x(0), SliceMap(e.x(0).dims, SlicesOf(e, e.x(0).dims, 1)));
}

template <class T>
void SliceGradientReference(Eval<T>& e) {
  const Dims& x = IntsOf(e, 1);
  CheckedElements(x);
  e.out[0] = TakeGradient(e.x(0), SliceMap(x, SlicesOf(e, x, 2)), x);
}

void SliceGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  std::vector<Value*> inputs = {dy, ShapeOf(g.builder, g.in(0))};
  inputs.insert(inputs.end(), g.node.inputs.begin() + 1, g.node.inputs.end());
  g.Add(0, g.builder.Op("SliceGradient", std::move(inputs)));
}

std::vector<OpCase> SliceCases() {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const CaseInput x{.dims = {5, 7}}, absent{.kind = CaseInput::Kind::kAbsent};
  return {
      {"front", {x, IntsInput({1}), IntsInput({3})}},
      {"last_axis", {{.dims = {3, 2, 9}}, IntsInput({4}), IntsInput({9}), IntsInput({-1})}},
      {"negative_ends", {x, IntsInput({-4, -5}), IntsInput({-1, -1}), IntsInput({0, 1})}},
      {"steps",
       {x, IntsInput({0, 1}), IntsInput({kMax, kMax}), IntsInput({0, 1}), IntsInput({2, 3})}},
      {"reversed",
       {x, IntsInput({-1, kMax}), IntsInput({kMin, kMin}), IntsInput({0, 1}), IntsInput({-1, -2})}},
      {"step_without_axes", {x, IntsInput({0, 6}), IntsInput({5, 0}), absent, IntsInput({1, -1})}},
      {"clamped", {x, IntsInput({kMin}), IntsInput({kMax}), IntsInput({1})}},
      {"huge_step", {x, IntsInput({1}), IntsInput({kMax}), IntsInput({1}), IntsInput({kMax})}},
      {"huge_negative_step",
       {x, IntsInput({-1}), IntsInput({kMin}), IntsInput({1}), IntsInput({kMin})}},
      {"nothing", {x, IntsInput({3}), IntsInput({2})}},
      {"empty_input", {{.dims = {0, 7}}, IntsInput({0}), IntsInput({kMax})}},
      {"ints", {IntsInput({1, 2, 3, 4}), IntsInput({1}), IntsInput({3})}, {}, 1, false}};
}

}  // namespace

const OpSchema& SliceSchema() {
  static const OpSchema schema{
      .name = "Slice",
      .doc =
          "y = x[start:end:step] per axis; negative bounds count from the back, all are clamped.\n"
          "x: any; starts, ends: int [k]; axes int [k] (0..k-1); steps int [k] (1), never 0.\n"
          "Source: ONNX Slice-13.",
      .min_inputs = 3,
      .max_inputs = 5,
      .infer = InferSlice,
      WEIR_REFERENCE(SliceReference),
      .gradient = SliceGradient,
      .cases = SliceCases,
      .nondifferentiable_inputs = {1, 2, 3, 4},
  };
  return schema;
}

const OpSchema& SliceGradientSchema() {
  static const OpSchema schema{
      .name = "SliceGradient",
      .domain = "ai.weir",
      .doc =
          "dx = dy where the slice took elements, else 0.\n"
          "inputs dy, shape of x int64 [r], then starts, ends, axes?, steps? of the Slice. Writes\n"
          "(=).",
      .min_inputs = 4,
      .max_inputs = 6,
      .infer = InferSliceGradient,
      WEIR_REFERENCE(SliceGradientReference),
  };
  return schema;
}

}  // namespace weir
