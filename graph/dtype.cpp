#include "graph/dtype.h"

#include <array>
#include <bit>
#include <cmath>

#include "graph/error.h"

namespace weir {
namespace {
struct Info {
  DType dtype;
  int onnx;
  int bits;
  bool is_float;
  std::string_view name;
};
constexpr std::array<Info, 16> kInfo = {{
    {DType::kUndefined, 0, 0, false, "undefined"},
    {DType::kFloat32, 1, 32, true, "float"},
    {DType::kFloat64, 11, 64, true, "double"},
    {DType::kFloat16, 10, 16, true, "float16"},
    {DType::kBFloat16, 16, 16, true, "bfloat16"},
    {DType::kInt64, 7, 64, false, "int64"},
    {DType::kInt32, 6, 32, false, "int32"},
    {DType::kInt16, 5, 16, false, "int16"},
    {DType::kInt8, 3, 8, false, "int8"},
    {DType::kUInt64, 13, 64, false, "uint64"},
    {DType::kUInt32, 12, 32, false, "uint32"},
    {DType::kUInt16, 4, 16, false, "uint16"},
    {DType::kUInt8, 2, 8, false, "uint8"},
    {DType::kInt4, 22, 4, false, "int4"},
    {DType::kUInt4, 21, 4, false, "uint4"},
    {DType::kBool, 9, 8, false, "bool"},
}};
}  // namespace

int BitsOf(DType dtype) { return kInfo[static_cast<size_t>(dtype)].bits; }
bool IsFloat(DType dtype) { return kInfo[static_cast<size_t>(dtype)].is_float; }
std::string_view DTypeName(DType dtype) { return kInfo[static_cast<size_t>(dtype)].name; }

int64_t BytesOf(DType dtype, int64_t elements) {
  // 64-bit element counts of up to 2^60 keep this product exact for every type.
  const int64_t bits = BitsOf(dtype);
  return bits >= 8 ? elements * (bits / 8) : (elements + 1) / 2;
}

DType DTypeFromName(std::string_view name) {
  for (const Info& info : kInfo) {
    if (info.name == name) return info.dtype;
  }
  return DType::kUndefined;
}

DType DTypeFromOnnx(int64_t number) {
  for (const Info& info : kInfo) {
    if (info.onnx == number) return info.dtype;
  }
  return DType::kUndefined;
}

int OnnxNumber(DType dtype) { return kInfo[static_cast<size_t>(dtype)].onnx; }

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000u) {                       // subnormal half
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace weir
