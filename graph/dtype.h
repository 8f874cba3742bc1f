#pragma once
#include <cstdint>
#include <string_view>

namespace weir {

// Element types. Names and file encodings are ONNX's; kUndefined marks "not inferred yet".
enum class DType : uint8_t {
  kUndefined,
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt64,
  kUInt32,
  kUInt16,
  kUInt8,
  kInt4,
  kUInt4,
  kBool,
};

// Bits per element: 4 for int4/uint4, 8 for bool.
int BitsOf(DType dtype);
// Bytes of `elements` packed elements, rounded up to whole bytes.
int64_t BytesOf(DType dtype, int64_t elements);
bool IsFloat(DType dtype);
// "float", "float16", "bfloat16", "int64", ... as in ONNX text syntax.
std::string_view DTypeName(DType dtype);
// Inverse of DTypeName; kUndefined when unknown.
DType DTypeFromName(std::string_view name);
// ONNX's TensorProto.DataType numbers. Attributes such as Cast's `to` keep them. kUndefined when the
// type is not one of ours (strings, float8, complex).
DType DTypeFromOnnx(int64_t number);
int OnnxNumber(DType dtype);

float HalfToFloat(uint16_t bits);
uint16_t FloatToHalf(float value);  // round to nearest even
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float value);  // round to nearest even; NaN stays NaN

}  // namespace weir
