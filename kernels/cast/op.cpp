#include "kernels/cast/convert.h"
#include "kernels/common/infer.h"

namespace weir {
namespace {

DType TargetOf(const Attributes& attributes) {
  const DType to = DTypeFromOnnx(attributes.Int("to"));
  WEIR_CHECK(to != DType::kUndefined, ErrorCode::kInvalidModel, "element type ",
             attributes.Int("to"), " in attribute 'to' is not supported");
  return to;
}

// Booleans of launch sizes are true: batch and sequence are at least 1.
Dim AsBool(const Dim& value) {
  if (!value.IsKnown()) return Dim::Unknown();
  return value == Dim(0) ? Dim(0) : Dim(1);
}

void InferTo(InferContext& c, DType to) {
  c.SetDType(0, to);
  if (c.HasShape(0)) c.SetOutput(0, to, c.shape(0));
  const auto content = IsFloat(to) ? std::nullopt : Content(c, 0);
  if (!content) return;
  Shape out = *content;
  for (Dim& value : out) {
    if (to == DType::kBool) {
      value = AsBool(value);
    } else if (value.IsConstant()) {
      value = NarrowInt(value.Constant(), to);
    }
  }
  c.SetContent(0, std::move(out));
}

void InferCast(InferContext& c) { InferTo(c, TargetOf(c.node.attributes)); }
void InferCastLike(InferContext& c) { InferTo(c, c.in(1)->dtype); }

template <class T>
void CastReference(Eval<T>& e, DType to) {
  const Array<T>& x = e.x(0);
  Array<T>& y = e.out[0];
  y.dtype = to;
  y.dims = x.dims;
  if (IsFloat(to)) {
    for (const T& v : x.f) y.f.push_back(RoundFloat(v, to));
    for (const int64_t v : x.i) y.f.push_back(RoundFloat(T(static_cast<double>(v)), to));
  } else {
    for (const T& v : x.f) y.i.push_back(FloatToInt(Real(v), to));
    for (const int64_t v : x.i) y.i.push_back(NarrowInt(v, to));
  }
}

template <class T>
void CastReference(Eval<T>& e) {
  CastReference(e, TargetOf(e.attributes));
}

template <class T>
void CastLikeReference(Eval<T>& e) {
  CastReference(e, e.x(1).dtype);
}

// Gradients are float32 whatever the forward types.
void CastGradient(GradientContext& g) {
  if (g.OutputGradient(0) != nullptr && g.Needs(0)) g.Add(0, g.OutputGradient(0));
}

constexpr int64_t kFloat = 1, kInt32 = 6, kInt64 = 7, kBool = 9, kFloat16 = 10, kDouble = 11,
                  kBFloat16 = 16;

std::vector<OpCase> CastCases() {
  const CaseInput floats{.kind = CaseInput::Kind::kFloats,
                         .dims = {7},
                         .floats = {-2.75, -1, -0.0, 0.4, 1.5, 65519, 1e30}};
  const CaseInput ints{
      .kind = CaseInput::Kind::kInts, .dims = {5}, .ints = {-1, 0, 1, 300, (int64_t{1} << 33) + 5}};
  return {{"float_to_float", {{.dims = {3, 5}}}, {{"to", kFloat}}},
          {"float_to_bfloat16", {floats}, {{"to", kBFloat16}}, 1, false},
          {"float_to_float16", {floats}, {{"to", kFloat16}}, 1, false},
          {"float_to_double", {floats}, {{"to", kDouble}}, 1, false},
          {"float_to_int64", {floats}, {{"to", kInt64}}, 1, false},
          {"float_to_int32", {floats}, {{"to", kInt32}}, 1, false},
          {"float_to_bool", {floats}, {{"to", kBool}}, 1, false},
          {"int64_to_float", {ints}, {{"to", kFloat}}, 1, false},
          {"int64_to_int32", {ints}, {{"to", kInt32}}, 1, false},
          {"int64_to_bool", {ints}, {{"to", kBool}}, 1, false},
          {"scalar", {{.dims = {}}}, {{"to", kFloat}}},
          {"empty", {{.dims = {0, 3}}}, {{"to", kInt64}}, 1, false}};
}

}  // namespace

const OpSchema& CastSchema() {
  static const OpSchema schema{
      .name = "Cast",
      .doc =
          "y = x in element type `to` (ONNX number). float -> integer truncates towards zero and\n"
          "saturates, NaN becomes 0; integer -> narrower integer keeps the low bits; -> bool is x\n"
          "!= 0;\n"
          "-> narrower float rounds to nearest even.  Source: ONNX Cast-21.",
      .infer = InferCast,
      WEIR_REFERENCE(CastReference),
      .gradient = CastGradient,
      .cases = CastCases,
      .elementwise = true,
  };
  return schema;
}

const OpSchema& CastLikeSchema() {
  static const OpSchema schema{
      .name = "CastLike",
      .doc = "y = Cast(x) to the element type of input 1.  Source: ONNX CastLike-21.",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferCastLike,
      WEIR_REFERENCE(CastLikeReference),
      .gradient = CastGradient,
      .cases = []() -> std::vector<OpCase> {
        const CaseInput id{.kind = CaseInput::Kind::kInts, .dims = {1}, .ints = {0}};
        return {{"float", {{.dims = {3}}, {.dims = {1}, .differentiable = false}}},
                {"ints", {{.dims = {3}}, id}, {}, 1, false}};
      },
      .elementwise = true,
      .nondifferentiable_inputs = {1},
  };
  return schema;
}

}  // namespace weir
