#include "graph/op_schema.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/quantize/reference.h"

namespace weir {

std::vector<int64_t> ScaleIndex(const Attributes& attributes, const Dims& x, const Dims& scale) {
  std::vector<int64_t> index(static_cast<size_t>(NumElements(x)), 0);
  if (NumElements(scale) == 1) return index;
  const auto rank = static_cast<int64_t>(x.size());
  const int64_t axis = attributes.Int("axis", 1), block = attributes.Int("block_size", 0);
  WEIR_CHECK(axis >= -rank && axis < rank, ErrorCode::kInvalidModel, "axis ", axis, " is outside [",
             -rank, ",", rank, ")");
  const auto at = static_cast<size_t>(axis < 0 ? axis + rank : axis);
  const bool blocked = block > 0 && scale.size() == x.size();
  Dims expected = blocked ? x : Dims{x[at]};
  if (blocked) expected[at] = DivCeil(x[at], block);
  WEIR_CHECK(scale == expected, ErrorCode::kInvalidModel, "scales ", ToString(scale),
             " do not fit x ", ToString(x), " at axis ", at,
             block > 0 ? StrCat(" with blocks of ", block) : std::string(), ": expected ",
             ToString(expected));
  int64_t inner = 1;
  for (size_t k = at + 1; k < x.size(); ++k) inner *= x[k];
  for (size_t k = 0; k < index.size(); ++k) {
    const auto i = static_cast<int64_t>(k);
    const int64_t along = i / inner % x[at];
    index[k] =
        blocked ? (i / (inner * x[at]) * expected[at] + along / block) * inner + i % inner : along;
  }
  return index;
}

IntRange RangeOf(DType dtype) {
  const int bits = BitsOf(dtype);
  switch (dtype) {
    case DType::kInt4:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
      return {-(int64_t{1} << (bits - 1)), (int64_t{1} << (bits - 1)) - 1};
    case DType::kUInt4:
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
      return {0, (int64_t{1} << bits) - 1};
    default:
      throw Error(ErrorCode::kInvalidModel, StrCat("cannot quantise to ", DTypeName(dtype)));
  }
}

namespace {

void InferDequantize(InferContext& c) {
  c.SetDType(0, c.in(1)->dtype);
  if (c.HasShape(0)) c.SetOutput(0, c.in(1)->dtype, c.shape(0));
}

void InferQuantize(InferContext& c) {
  const DType dtype = c.in(2) != nullptr ? c.in(2)->dtype : DType::kUInt8;
  c.SetDType(0, dtype);
  if (c.HasShape(0)) c.SetOutput(0, dtype, c.shape(0));
}

CaseInput Ints(Dims dims, std::vector<int64_t> v, DType dtype = DType::kInt8) {
  return {.kind = CaseInput::Kind::kInts,
          .dims = std::move(dims),
          .ints = std::move(v),
          .dtype = dtype};
}
CaseInput Floats(Dims dims, std::vector<double> v) {
  return {.kind = CaseInput::Kind::kFloats, .dims = std::move(dims), .floats = std::move(v)};
}

std::vector<OpCase> DequantizeCases() {
  return {{"tensor", {Ints({3}, {-128, 0, 127}), Floats({}, {0.5}), Ints({}, {-3})}},
          {"per_axis",
           {Ints({2, 3}, {1, 2, 3, 4, 5, 6}), Floats({3}, {0.5, 1, 2})},
           {{"axis", int64_t{1}}}},
          {"blocked",
           {Ints({2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), Floats({2, 3}, {0.5, 1, 2, 4, 8, 16}),
            Ints({2, 3}, {1, 0, 1, 0, 1, 0})},
           {{"axis", int64_t{-1}}, {"block_size", int64_t{2}}}},
          {"blocked_rows",
           {Ints({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), Floats({2, 2}, {0.5, 1, 2, 4})},
           {{"axis", int64_t{0}}, {"block_size", int64_t{2}}}}};
}
std::vector<OpCase> QuantizeCases() {
  return {{"saturates",
           {Floats({6}, {-1e9, -1.5, -0.5, 0.5, 2.5, 1e9}), Floats({}, {1}), Ints({}, {0})}},
          {"unsigned", {Floats({3}, {-3, 0, 300}), Floats({}, {1})}}};
}

}  // namespace

const OpSchema& DequantizeLinearSchema() {
  static const OpSchema schema{
      .name = "DequantizeLinear",
      .doc =
          "y = (x - zero_point) * scale; scale per tensor, per `axis` (1), or per `block_size` "
          "along it.\n"
          "y has the dtype of the scale. Not differentiable.  Source: ONNX DequantizeLinear",
      .min_inputs = 2,
      .max_inputs = 3,
      .infer = InferDequantize,
      WEIR_REFERENCE(DequantizeLinearReference),
      .cases = DequantizeCases};
  return schema;
}
WEIR_REFERENCE_CPU_KERNEL(DequantizeLinear)

const OpSchema& QuantizeLinearSchema() {
  static const OpSchema schema{.name = "QuantizeLinear",
                               .doc =
                                   "y = saturate(round(x / scale) + zero_point), halves to even; "
                                   "dtype of the zero point (uint8).\n"
                                   "Not differentiable.  Source: ONNX QuantizeLinear",
                               .min_inputs = 2,
                               .max_inputs = 3,
                               .infer = InferQuantize,
                               WEIR_REFERENCE(QuantizeLinearReference),
                               .cases = QuantizeCases};
  return schema;
}
WEIR_REFERENCE_CPU_KERNEL(QuantizeLinear)

}  // namespace weir
