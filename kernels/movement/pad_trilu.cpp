#include "kernels/common/cases.h"
#include "kernels/common/infer.h"
#include "kernels/common/reference_kernel.h"

namespace weir {
namespace {

// ---- Pad ----

// (before, after) of every axis of a rank-r input; negative amounts crop.
using Pads = std::vector<std::pair<Dim, Dim>>;

Pads PadsOf(int64_t rank, const Shape& pads, const std::optional<std::vector<int64_t>>& axes) {
  Pads out(static_cast<size_t>(rank), {Dim(0), Dim(0)});
  std::vector<int64_t> all;
  for (int64_t i = 0; i < rank; ++i) all.push_back(i);
  const auto listed = axes ? NormalizeAxes(*axes, rank) : all;
  WEIR_CHECK(pads.size() == 2 * listed.size(), ErrorCode::kInvalidShape, "pads holds ", pads.size(),
             " amounts for ", listed.size(), " axes; expected two per axis");
  for (size_t k = 0; k < listed.size(); ++k) {
    out[static_cast<size_t>(listed[k])] = {pads[k], pads[k + listed.size()]};
  }
  return out;
}

Shape PaddedShape(const Shape& x, const Pads& pads) {
  Shape out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back(pads[i].first + x[i] + pads[i].second);
    WEIR_CHECK(!out.back().IsConstant() || out.back().Constant() >= 0, ErrorCode::kInvalidShape,
               "axis ", i, " of ", ToString(x), " becomes ", ToString(out.back()), " elements");
  }
  return out;
}

void CheckMode(const Attributes& attributes) {
  const std::string mode = attributes.String("mode", "constant");
  WEIR_CHECK(mode == "constant", ErrorCode::kUnsupportedOp, "mode '", mode,
             "' is not supported; only 'constant' is");
}

void InferPad(InferContext& c) {
  CheckMode(c.node.attributes);
  const DType dtype = c.in(0)->dtype;
  if (!c.HasShape(0)) return c.SetDType(0, dtype);
  const auto pads = Content(c, 1);
  const auto axes = ConstantContent(c, 3);
  if (!pads || (c.in(3) != nullptr && !axes)) return SetUnknown(c, dtype, Rank(c.shape(0)));
  c.SetOutput(0, dtype, PaddedShape(c.shape(0), PadsOf(Rank(c.shape(0)), *pads, axes)));
}

template <class T>
void PadReference(Eval<T>& e) {
  CheckMode(e.attributes);
  const Array<T>& x = e.x(0);
  const auto axes = e.has(3) ? std::optional<std::vector<int64_t>>(IntsOf(e, 3)) : std::nullopt;
  const Pads pads = PadsOf(Rank(x.dims), ToShape(IntsOf(e, 1)), axes);
  const Dims strides = Strides(x.dims);
  const IndexMap map =
      MakeIndexMap(ToDims(PaddedShape(ToShape(x.dims), pads)), [&](const Dims& at) {
        int64_t from = 0;
        for (size_t i = 0; i < at.size(); ++i) {
          const int64_t inside = at[i] - pads[i].first.Constant();
          if (inside < 0 || inside >= x.dims[i]) return int64_t{-1};
          from += inside * strides[i];
        }
        return from;
      });
  if (!e.has(2)) return void(e.out[0] = Take(x, map));
  const Array<T>& fill = e.x(2);
  WEIR_CHECK(fill.elements() == 1 && fill.is_float() == x.is_float(), ErrorCode::kInvalidModel,
             "the fill value must be one ", DTypeName(x.dtype), ", got ", DTypeName(fill.dtype),
             ToString(fill.dims));
  e.out[0] = x.is_float() ? Take(x, map, fill.f[0]) : Take(x, map, T{}, fill.i[0]);
}

// Padding back by the negated amounts crops what was added and fills what was cropped with zeros.
void PadGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  InferContext c(g.node);
  const auto pads = ConstantContent(c, 1);
  WEIR_CHECK(pads.has_value(), ErrorCode::kUnsupportedOp,
             "the gradient of padding by launch-dependent amounts is not supported");
  std::vector<int64_t> negated;
  for (const int64_t amount : *pads) negated.push_back(-amount);
  std::vector<Value*> inputs = {dy, g.builder.Ints(std::move(negated))};
  if (g.in(3) != nullptr) inputs.insert(inputs.end(), {nullptr, g.in(3)});
  g.Add(0, g.builder.Op("Pad", std::move(inputs)));
}

// ---- Trilu ----

void InferTrilu(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (!c.HasShape(0)) return;
  if (c.shape(0).size() < 2)
    c.Fail(StrCat("x must have rank 2 or more, got ", ToString(c.shape(0))));
  c.SetOutput(0, c.in(0)->dtype, c.shape(0));
}

template <class T>
void TriluReference(Eval<T>& e) {
  const Dims& dims = e.x(0).dims;
  const size_t rank = dims.size();
  WEIR_CHECK(rank >= 2, ErrorCode::kInvalidShape, "x must have rank 2 or more, got ",
             ToString(dims));
  const int64_t k =
      std::clamp<int64_t>(e.has(1) ? IntOf(e, 1) : 0, -(int64_t{1} << 32), int64_t{1} << 32);
  const bool upper = e.attributes.Int("upper", 1) != 0;
  int64_t from = -1;
  e.out[0] = Take(e.x(0), MakeIndexMap(dims, [&](const Dims& at) {
                    ++from;
                    const int64_t right = at[rank - 1] - at[rank - 2];
                    return (upper ? right >= k : right <= k) ? from : int64_t{-1};
                  }));
}

void TriluGradient(GradientContext& g) {
  Value* dy = g.OutputGradient(0);
  if (dy == nullptr || !g.Needs(0)) return;
  std::vector<Value*> inputs = {dy};
  if (g.in(1) != nullptr) inputs.push_back(g.in(1));
  g.Add(0, g.builder.Op("Trilu", std::move(inputs), g.node.attributes));
}

}  // namespace

const OpSchema& PadSchema() {
  static const OpSchema schema{
      .name = "Pad",
      .doc =
          "y = x with pads[i] elements of the fill value (0) before and pads[i + k] after axis\n"
          "axes[i];\n"
          "negative amounts crop.\n"
          "x: any; pads: int64 [2k]; value: scalar optional; axes: int [k] optional. mode\n"
          "constant only.\n"
          "Source: ONNX Pad-21.",
      .min_inputs = 2,
      .max_inputs = 4,
      .infer = InferPad,
      WEIR_REFERENCE(PadReference),
      .gradient = PadGradient,
      .cases = []() -> std::vector<OpCase> {
        const CaseInput absent{.kind = CaseInput::Kind::kAbsent};
        const CaseInput fill{.kind = CaseInput::Kind::kFloats,
                             .dims = {},
                             .floats = {-1.5},
                             .differentiable = false};
        return {{"zeros", {{.dims = {2, 3}}, IntsInput({0, 1, 2, 0})}},
                {"value", {{.dims = {2, 3}}, IntsInput({1, 0, 0, 1}), fill}},
                {"axes", {{.dims = {2, 3, 4}}, IntsInput({1, 2}), absent, IntsInput({-1})}},
                {"crop", {{.dims = {4, 5}}, IntsInput({-1, 2, 0, -3})}},
                {"scalar", {{.dims = {}}, IntsInput({})}},
                {"empty", {{.dims = {0, 2}}, IntsInput({1, 0, 1, 0})}}};
      },
      .nondifferentiable_inputs = {1, 2, 3},
  };
  return schema;
}

const OpSchema& TriluSchema() {
  static const OpSchema schema{
      .name = "Trilu",
      .doc =
          "Keeps column - row >= k of the last two axes (upper = 1) or <= k (upper = 0), else 0.\n"
          "x: [..., M, N]; k: int64 scalar (0).  Source: ONNX Trilu-14.",
      .min_inputs = 1,
      .max_inputs = 2,
      .infer = InferTrilu,
      WEIR_REFERENCE(TriluReference),
      .gradient = TriluGradient,
      .cases = []() -> std::vector<OpCase> {
        return {{"upper", {{.dims = {3, 5}}}},
                {"lower", {{.dims = {2, 4, 3}}, IntInput(-1)}, {{"upper", int64_t{0}}}},
                {"above", {{.dims = {4, 4}}, IntInput(1)}},
                {"far", {{.dims = {2, 2}}, IntInput(INT64_MAX)}},
                {"empty", {{.dims = {0, 3}}}}};
      },
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

WEIR_REFERENCE_CPU_KERNEL(Pad)
WEIR_REFERENCE_CPU_KERNEL(Trilu)

}  // namespace weir
