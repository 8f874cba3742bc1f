// Comparisons, booleans, bits, IsNaN, IsInf.
#include "kernels/cast/convert.h"
#include "kernels/elementwise/schemas.h"

namespace weir {
namespace {

enum class Ordering { kEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual };

template <class A>
bool Holds(Ordering ordering, A a, A b) {
  switch (ordering) {
    case Ordering::kEqual:
      return a == b;
    case Ordering::kLess:
      return a < b;
    case Ordering::kLessOrEqual:
      return a <= b;
    case Ordering::kGreater:
      return a > b;
    case Ordering::kGreaterOrEqual:
      return a >= b;
  }
  return false;
}

template <Ordering ordering, class T>
void CompareReference(Eval<T>& e) {
  std::vector<std::vector<int64_t>> index;
  const Dims dims = BroadcastInputs(e, index);
  const Array<T>&a = e.x(0), &b = e.x(1);
  WEIR_CHECK(a.is_float() == b.is_float(), ErrorCode::kInvalidModel, "compares ",
             DTypeName(a.dtype), " with ", DTypeName(b.dtype), "; insert a Cast");
  Array<T> y = Array<T>::Ints(dims, DType::kBool);
  for (size_t k = 0; k < y.i.size(); ++k) {
    const auto i = static_cast<size_t>(index[0][k]), j = static_cast<size_t>(index[1][k]);
    y.i[k] = a.is_float() ? Holds(ordering, Real(a.f[i]), Real(b.f[j]))
                          : Holds(ordering, a.i[i], b.i[j]);
  }
  e.out[0] = std::move(y);
}

template <Ordering ordering>
void InferCompare(InferContext& c) {
  InferBroadcast(c, 0, DType::kBool);
  PropagateContent(c, [](const Node&, const std::vector<Dim>& x) {
    const auto order = Compare(x[0], x[1]);
    return order ? Dim(Holds(ordering, *order, 0)) : Dim::Unknown();
  });
}

struct AndFunction {
  int64_t operator()(int64_t a, int64_t b) const { return a & b; }
};
struct OrFunction {
  int64_t operator()(int64_t a, int64_t b) const { return a | b; }
};
struct XorFunction {
  int64_t operator()(int64_t a, int64_t b) const { return a ^ b; }
};

template <class Function, class T>
void BitReference(Eval<T>& e) {
  std::vector<std::vector<int64_t>> index;
  const Dims dims = BroadcastInputs(e, index);
  const Array<T>&a = e.x(0), &b = e.x(1);
  WEIR_CHECK(a.dtype == b.dtype && !a.is_float(), ErrorCode::kInvalidModel, "got ",
             DTypeName(a.dtype), " and ", DTypeName(b.dtype),
             ", expected one integer or bool type");
  e.out[0] = Array<T>::Ints(dims, a.dtype);
  for (size_t k = 0; k < e.out[0].i.size(); ++k) {
    e.out[0].i[k] = Function{}(a.i[index[0][k]], b.i[index[1][k]]);
  }
}

void RequireIntegers(InferContext& c, bool boolean) {
  for (const Value* input : c.node.inputs) {
    const bool bad = IsFloat(input->dtype) || (boolean && input->dtype != DType::kBool);
    if (input->dtype != DType::kUndefined && bad) {
      c.Fail(StrCat("input is ", DTypeName(input->dtype), ", expected ",
                    boolean ? "bool" : "an integer type"));
    }
  }
}

template <class Function, bool boolean>
void InferBits(InferContext& c) {
  RequireIntegers(c, boolean);
  InferBroadcast(c);
  PropagateContent(c, [](const Node&, const std::vector<Dim>& x) {
    const auto a = ConstantOf(x[0]), b = ConstantOf(x[1]);
    return a && b ? Dim(Function{}(*a, *b)) : Dim::Unknown();
  });
}

template <bool boolean>
void InferNot(InferContext& c) {
  RequireIntegers(c, boolean);
  InferUnary(c);
  PropagateContent(c, [](const Node& node, const std::vector<Dim>& x) {
    const auto a = ConstantOf(x[0]);
    return a ? Dim(boolean ? *a == 0 : NarrowInt(~*a, node.in(0)->dtype)) : Dim::Unknown();
  });
}

template <bool boolean, class T>
void NotReference(Eval<T>& e) {
  const Array<T>& x = e.x(0);
  WEIR_CHECK(!x.is_float(), ErrorCode::kInvalidModel, "got ", DTypeName(x.dtype),
             ", expected integers or bool");
  e.out[0] = x;
  for (int64_t& v : e.out[0].i) v = boolean ? v == 0 : NarrowInt(~v, x.dtype);
}
template <class T>
void LogicalNotReference(Eval<T>& e) {
  NotReference<true>(e);
}
template <class T>
void BitwiseNotReference(Eval<T>& e) {
  NotReference<false>(e);
}

template <class T>
void IsNaNReference(Eval<T>& e) {
  e.out[0] = Array<T>::Ints(e.x(0).dims, DType::kBool);
  for (size_t k = 0; k < e.x(0).f.size(); ++k) e.out[0].i[k] = std::isnan(Real(e.x(0).f[k]));
}
template <class T>
void IsInfReference(Eval<T>& e) {
  const bool negative = e.attributes.Int("detect_negative", 1) != 0;
  const bool positive = e.attributes.Int("detect_positive", 1) != 0;
  e.out[0] = Array<T>::Ints(e.x(0).dims, DType::kBool);
  for (size_t k = 0; k < e.x(0).f.size(); ++k) {
    const double v = Real(e.x(0).f[k]);
    e.out[0].i[k] = std::isinf(v) && (v > 0 ? positive : negative);
  }
}

CaseInput Ints(Dims dims, std::vector<int64_t> values, DType dtype = DType::kInt64) {
  return {.kind = CaseInput::Kind::kInts,
          .dims = std::move(dims),
          .ints = std::move(values),
          .dtype = dtype};
}
CaseInput Floats(Dims dims, std::vector<double> values) {
  return {.kind = CaseInput::Kind::kFloats, .dims = std::move(dims), .floats = std::move(values)};
}

std::vector<OpCase> CompareCases() {
  auto cases = BinaryCases();
  cases.push_back({"ints", {Ints({3}, {-1, 0, 1}), Ints({}, {0})}});
  cases.push_back(
      {"int32", {Ints({2, 1}, {-1, 2}, DType::kInt32), Ints({3}, {-1, 0, 2}, DType::kInt32)}});
  cases.push_back(
      {"ties", {Floats({4}, {0, 1, NAN, -INFINITY}), Floats({4}, {-0.0, 1, NAN, -INFINITY})}});
  return cases;
}
std::vector<OpCase> BoolCases() {
  return {{"table", {Ints({4}, {0, 0, 1, 1}, DType::kBool), Ints({4}, {0, 1, 0, 1}, DType::kBool)}},
          {"outer", {Ints({2, 1}, {0, 1}, DType::kBool), Ints({3}, {0, 1, 1}, DType::kBool)}},
          {"empty", {Ints({0}, {}, DType::kBool), Ints({1}, {1}, DType::kBool)}}};
}
std::vector<OpCase> BitCases() {
  return {{"int64", {Ints({3}, {-1, 12, 5}), Ints({}, {10})}},
          {"uint8", {Ints({2}, {255, 12}, DType::kUInt8), Ints({2}, {15, 8}, DType::kUInt8)}}};
}
std::vector<OpCase> NotCases() { return {{"both", {Ints({1, 2}, {0, 1}, DType::kBool)}}}; }
std::vector<OpCase> BitNotCases() {
  return {{"uint8", {Ints({3}, {0, 1, 255}, DType::kUInt8)}}, {"int64", {Ints({2}, {0, -5})}}};
}
std::vector<OpCase> SpecialCases() {
  return {
      {"all", {Floats({2, 3}, {0, NAN, INFINITY, -INFINITY, 1e30, -1})}},
      {"positive", {Floats({3}, {NAN, INFINITY, -INFINITY})}, {{"detect_negative", int64_t{0}}}},
      {"empty", {{.dims = {0, 2}}}}};
}

OpSchema LogicSchema(const char* name, const char* doc, int inputs) {
  OpSchema schema;
  schema.name = name;
  schema.doc = StrCat(doc, "  Not differentiable.  Source: ONNX ", name);
  schema.min_inputs = schema.max_inputs = inputs;
  schema.cost = ElementwiseCost;
  return schema;
}

}  // namespace

#define WEIR_COMPARE(Name, formula)                                                      \
  const OpSchema& Name##Schema() {                                                       \
    static const OpSchema schema = [] {                                                  \
      OpSchema s = LogicSchema(#Name, formula " elementwise, broadcast; y is bool.", 2); \
      s.infer = InferCompare<Ordering::k##Name>;                                         \
      s.reference_f32 = CompareReference<Ordering::k##Name, float>;                      \
      s.reference_f64 = CompareReference<Ordering::k##Name, double>;                     \
      s.reference_c128 = CompareReference<Ordering::k##Name, std::complex<double>>;      \
      s.cases = CompareCases;                                                            \
      return s;                                                                          \
    }();                                                                                 \
    return schema;                                                                       \
  }
WEIR_COMPARE(Equal, "y = a == b")
WEIR_COMPARE(Less, "y = a < b")
WEIR_COMPARE(LessOrEqual, "y = a <= b")
WEIR_COMPARE(Greater, "y = a > b")
WEIR_COMPARE(GreaterOrEqual, "y = a >= b")
#undef WEIR_COMPARE

#define WEIR_BITS(Name, Function, boolean, cases_, formula)                   \
  const OpSchema& Name##Schema() {                                            \
    static const OpSchema schema = [] {                                       \
      OpSchema s = LogicSchema(#Name, formula " elementwise, broadcast.", 2); \
      s.infer = InferBits<Function, boolean>;                                 \
      s.reference_f32 = BitReference<Function, float>;                        \
      s.reference_f64 = BitReference<Function, double>;                       \
      s.reference_c128 = BitReference<Function, std::complex<double>>;        \
      s.cases = cases_;                                                       \
      s.elementwise = true;                                                   \
      return s;                                                               \
    }();                                                                      \
    return schema;                                                            \
  }
WEIR_BITS(And, AndFunction, true, BoolCases, "y = a and b")
WEIR_BITS(Or, OrFunction, true, BoolCases, "y = a or b")
WEIR_BITS(Xor, XorFunction, true, BoolCases, "y = a xor b")
WEIR_BITS(BitwiseAnd, AndFunction, false, BitCases, "y = a & b on integers")
WEIR_BITS(BitwiseOr, OrFunction, false, BitCases, "y = a | b on integers")
#undef WEIR_BITS

#define WEIR_TEST(Name, reference, inference, in_place, cases_, formula) \
  const OpSchema& Name##Schema() {                                       \
    static const OpSchema schema = [] {                                  \
      OpSchema s = LogicSchema(#Name, formula, 1);                       \
      s.infer = inference;                                               \
      s.reference_f32 = reference<float>;                                \
      s.reference_f64 = reference<double>;                               \
      s.reference_c128 = reference<std::complex<double>>;                \
      s.cases = cases_;                                                  \
      s.elementwise = in_place;                                          \
      return s;                                                          \
    }();                                                                 \
    return schema;                                                       \
  }
WEIR_TEST(Not, LogicalNotReference, InferNot<true>, true, NotCases, "y = not x.")
WEIR_TEST(BitwiseNot, BitwiseNotReference, InferNot<false>, true, BitNotCases, "y = ~x.")
WEIR_TEST(IsNaN, IsNaNReference, InferUnaryBool, false, SpecialCases, "y = x is NaN.")
WEIR_TEST(IsInf, IsInfReference, InferUnaryBool, false, SpecialCases,
          "y = x is an infinity (detect_positive, detect_negative: 1).")
#undef WEIR_TEST

}  // namespace weir
