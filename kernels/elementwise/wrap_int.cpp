#include "kernels/elementwise/functions.h"

namespace weir {

int64_t WrapInt(DType dtype, int64_t value) {
  switch (dtype) {
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
    case DType::kBool:
      return value != 0;
    default:
      return value;
  }
}

}  // namespace weir
