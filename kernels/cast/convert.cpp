#include "kernels/cast/convert.h"

#include <limits>

#include "graph/error.h"

namespace weir {

int64_t NarrowInt(int64_t value, DType to) {
  switch (to) {
    case DType::kBool:
      return value != 0;
    case DType::kInt32:
      return static_cast<int32_t>(value);
    case DType::kInt16:
      return static_cast<int16_t>(value);
    case DType::kInt8:
      return static_cast<int8_t>(value);
    case DType::kUInt32:
      return static_cast<uint32_t>(value);
    case DType::kUInt16:
      return static_cast<uint16_t>(value);
    case DType::kUInt8:
      return static_cast<uint8_t>(value);
    case DType::kInt4:
      return static_cast<int8_t>((value & 15) << 4) >> 4;
    case DType::kUInt4:
      return value & 15;
    default:
      return value;
  }
}

template <class I>
static int64_t Saturate(double value) {
  if (std::isnan(value)) return 0;
  constexpr I kLow = std::numeric_limits<I>::min(), kHigh = std::numeric_limits<I>::max();
  if (value <= static_cast<double>(kLow)) return static_cast<int64_t>(kLow);
  if (value >= static_cast<double>(kHigh)) return static_cast<int64_t>(kHigh);
  return static_cast<int64_t>(static_cast<I>(value));
}

int64_t FloatToInt(double value, DType to) {
  switch (to) {
    case DType::kBool:
      return value != 0;
    case DType::kInt32:
      return Saturate<int32_t>(value);
    case DType::kInt16:
      return Saturate<int16_t>(value);
    case DType::kInt8:
      return Saturate<int8_t>(value);
    case DType::kUInt64:
      return Saturate<uint64_t>(value);
    case DType::kUInt32:
      return Saturate<uint32_t>(value);
    case DType::kUInt16:
      return Saturate<uint16_t>(value);
    case DType::kUInt8:
      return Saturate<uint8_t>(value);
    default:
      return Saturate<int64_t>(value);
  }
}

double RoundDouble(double value, DType to) {
  switch (to) {
    case DType::kFloat32:
      return static_cast<float>(value);
    case DType::kFloat16:
      return HalfToFloat(FloatToHalf(static_cast<float>(value)));
    case DType::kBFloat16:
      return BFloat16ToFloat(FloatToBFloat16(static_cast<float>(value)));
    default:
      return value;
  }
}

}  // namespace weir
