// Pow and Mod.
#include "kernels/cast/convert.h"
#include "kernels/elementwise/gradients.h"
#include "kernels/elementwise/schemas.h"

namespace weir {
namespace {

int64_t IntPow(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    WEIR_CHECK(base != 0, ErrorCode::kInvalidModel, "Pow: integer 0 to the negative power ",
               exponent);
    return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  }
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (; exponent > 0; exponent >>= 1, factor *= factor) {
    if (exponent & 1) result *= factor;
  }
  return static_cast<int64_t>(result);
}

// Small whole powers by multiplication: a complex logarithm of a negative base would drown the
// step.
template <class T>
T PowOf(const T& x, const T& p) {
  const double whole = Real(p);
  if (p != T(static_cast<float>(whole)) || whole != std::trunc(whole) || std::abs(whole) > 8)
    return std::pow(x, p);
  T y(1);
  for (int i = 0; i < std::abs(whole); ++i) y *= x;
  return whole < 0 ? T(1) / y : y;
}

// The exponent may have any numeric dtype; the result has the base's.
template <class T>
void PowReference(Eval<T>& e) {
  std::vector<std::vector<int64_t>> index;
  const Dims dims = BroadcastInputs(e, index);
  const Array<T>&a = e.x(0), &b = e.x(1);
  Array<T> y = a.is_float() ? Array<T>::Floats(dims) : Array<T>::Ints(dims, a.dtype);
  y.dtype = a.dtype;
  const auto exponent = [&](size_t k) {
    return b.is_float() ? b.f[index[1][k]] : T(static_cast<float>(b.i[index[1][k]]));
  };
  for (size_t k = 0; k < y.f.size(); ++k) {
    y.f[k] = PowOf(a.f[index[0][k]], exponent(k));
  }
  for (size_t k = 0; k < y.i.size(); ++k) {
    const int64_t x = a.i[index[0][k]];
    y.i[k] = b.is_float() ? FloatToInt(std::pow(static_cast<double>(x), Real(exponent(k))), y.dtype)
                          : NarrowInt(IntPow(x, b.i[index[1][k]]), y.dtype);
  }
  e.out[0] = std::move(y);
}

void InferPow(InferContext& c) {
  const DType dtype = c.in(0)->dtype;
  c.SetDType(0, dtype);
  if (!c.HasShape(0) || !c.HasShape(1)) return;
  const auto shape = Broadcast(c.shape(0), c.shape(1));
  if (!shape)
    c.Fail(StrCat(ToString(c.shape(0)), " does not broadcast with ", ToString(c.shape(1))));
  c.SetOutput(0, dtype, *shape);
  PropagateContent(c, [](const Node&, const std::vector<Dim>& x) {
    const auto power = ConstantOf(x[1]);
    if (!power || *power < 0 || *power > 62) return Dim::Unknown();
    Dim y = 1;
    for (int64_t i = 0; i < *power; ++i) y = y * x[0];
    return y;
  });
}

// fmod = 1: sign of the dividend (C fmod). fmod = 0: sign of the divisor (Python %).
int64_t IntMod(int64_t a, int64_t b, bool fmod) {
  WEIR_CHECK(b != 0, ErrorCode::kInvalidModel, "Mod: integer remainder of ", a, " by zero");
  if (b == -1) return 0;
  const int64_t r = a % b;
  return !fmod && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double FloatMod(double a, double b, bool fmod) {
  const double r = std::fmod(a, b);
  return !fmod && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

template <class T>
void ModReference(Eval<T>& e) {
  const bool fmod = e.attributes.Int("fmod", 0) != 0;
  std::vector<std::vector<int64_t>> index;
  const Dims dims = BroadcastInputs(e, index);
  const Array<T>&a = e.x(0), &b = e.x(1);
  WEIR_CHECK(a.dtype == b.dtype, ErrorCode::kInvalidModel, "Mod of ", DTypeName(a.dtype), " by ",
             DTypeName(b.dtype), "; insert a Cast");
  Array<T> y = a.is_float() ? Array<T>::Floats(dims) : Array<T>::Ints(dims, a.dtype);
  y.dtype = a.dtype;
  for (size_t k = 0; k < y.f.size(); ++k) {
    const T x = a.f[index[0][k]], m = b.f[index[1][k]];
    // The whole quotient is a constant to the derivative.
    y.f[k] = Lift(x, FloatMod(Real(x), Real(m), fmod), 1);
  }
  for (size_t k = 0; k < y.i.size(); ++k) y.i[k] = IntMod(a.i[index[0][k]], b.i[index[1][k]], fmod);
  e.out[0] = std::move(y);
}

void InferMod(InferContext& c) {
  InferBroadcast(c);
  PropagateContent(c, [](const Node& node, const std::vector<Dim>& x) {
    const auto a = ConstantOf(x[0]), b = ConstantOf(x[1]);
    if (!a || !b || *b == 0) return DivExact(x[0], x[1]).IsKnown() ? Dim(0) : Dim::Unknown();
    return Dim(IntMod(*a, *b, node.attributes.Int("fmod", 0) != 0));
  });
}

std::vector<OpCase> PowCases() {
  auto cases = BinaryPositiveCases();
  cases.push_back(
      {"square",
       {{.dims = {3, 67}},
        {.kind = CaseInput::Kind::kFloats, .dims = {}, .floats = {2}, .differentiable = false}}});
  cases.push_back(
      {"cube_int", {{.dims = {3, 67}}, {.kind = CaseInput::Kind::kInts, .dims = {}, .ints = {3}}}});
  cases.push_back({"root",
                   {{.kind = CaseInput::Kind::kPositive, .dims = {3, 67}},
                    {.kind = CaseInput::Kind::kFloats,
                     .dims = {1},
                     .floats = {-0.5},
                     .differentiable = false}}});
  return cases;
}

std::vector<OpCase> ModCases() {
  const auto ints = [](Dims dims, std::vector<int64_t> v) {
    return CaseInput{.kind = CaseInput::Kind::kInts, .dims = std::move(dims), .ints = std::move(v)};
  };
  return {
      {"python", {ints({6}, {-7, -6, -1, 0, 6, 7}), ints({}, {3})}, {}, 1, false},
      {"python_negative", {ints({3}, {-7, 0, 7}), ints({1}, {-3})}, {}, 1, false},
      {"c", {ints({6}, {-7, -6, -1, 0, 6, 7}), ints({}, {3})}, {{"fmod", int64_t{1}}}, 1, false},
      {"float_python",
       {{.dims = {4, 33}, .scale = 5},
        {.kind = CaseInput::Kind::kFloats, .dims = {}, .floats = {-1.5}, .differentiable = false}}},
      {"float",
       {{.dims = {4, 33}, .scale = 5},
        {.kind = CaseInput::Kind::kFloats, .dims = {}, .floats = {1.5}, .differentiable = false}},
       {{"fmod", int64_t{1}}}}};
}

}  // namespace

const OpSchema& PowSchema() {
  static const OpSchema schema{
      .name = "Pow",
      .doc =
          "y = a^b, broadcast; y has a's dtype, b may have another (integers too).\n"
          "The gradient of b exists for a > 0.  Source: ONNX Pow",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferPow,
      WEIR_REFERENCE(PowReference),
      .gradient = PowGradient,
      .cost = ElementwiseCost,
      .cases = PowCases,
      .elementwise = true};
  return schema;
}

const OpSchema& ModSchema() {
  static const OpSchema schema{
      .name = "Mod",
      .doc =
          "y = a mod b, broadcast. fmod = 0: sign of b; fmod = 1: sign of a, as C's fmod.\n"
          "Source: ONNX Mod",
      .min_inputs = 2,
      .max_inputs = 2,
      .infer = InferMod,
      WEIR_REFERENCE(ModReference),
      .gradient = ModGradient,
      .cost = ElementwiseCost,
      .cases = ModCases,
      .elementwise = true};
  return schema;
}

}  // namespace weir
