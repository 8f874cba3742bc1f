#include "graph/tensor_data.h"

#include <cstring>

#include "graph/error.h"

namespace weir {
namespace {

template <class T>
T Load(const std::byte* bytes, int64_t index) {
  T value;  // file offsets may be unaligned, so copy
  std::memcpy(&value, bytes + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

double LoadFloat(DType dtype, const std::byte* bytes, int64_t i) {
  switch (dtype) {
    case DType::kFloat32: return Load<float>(bytes, i);
    case DType::kFloat64: return Load<double>(bytes, i);
    case DType::kFloat16: return HalfToFloat(Load<uint16_t>(bytes, i));
    case DType::kBFloat16: return BFloat16ToFloat(Load<uint16_t>(bytes, i));
    default: break;
  }
  throw Error(ErrorCode::kInternal, StrCat(DTypeName(dtype), " read as float"));
}

int64_t LoadInt(DType dtype, const std::byte* bytes, int64_t i) {
  switch (dtype) {
    case DType::kInt64: return Load<int64_t>(bytes, i);
    case DType::kInt32: return Load<int32_t>(bytes, i);
    case DType::kInt16: return Load<int16_t>(bytes, i);
    case DType::kInt8: return Load<int8_t>(bytes, i);
    case DType::kUInt64: return static_cast<int64_t>(Load<uint64_t>(bytes, i));
    case DType::kUInt32: return Load<uint32_t>(bytes, i);
    case DType::kUInt16: return Load<uint16_t>(bytes, i);
    case DType::kUInt8: return Load<uint8_t>(bytes, i);
    case DType::kBool: return Load<uint8_t>(bytes, i) != 0;
    case DType::kInt4:
    case DType::kUInt4: {  // two per byte, low nibble first
      const int nibble = (Load<uint8_t>(bytes, i / 2) >> (4 * (i % 2))) & 0xf;
      return dtype == DType::kInt4 && nibble >= 8 ? nibble - 16 : nibble;
    }
    default: break;
  }
  throw Error(ErrorCode::kInternal, StrCat(DTypeName(dtype), " read as integer"));
}

template <class T>
std::vector<std::byte> ToBytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

TensorData::TensorData(DType dtype, Dims dims, std::span<const std::byte> bytes,
                       std::shared_ptr<const void> keepalive)
    : dtype_(dtype),
      dims_(std::move(dims)),
      elements_(NumElements(dims_)),
      bytes_(bytes),
      keepalive_(std::move(keepalive)) {
  WEIR_CHECK(static_cast<int64_t>(bytes_.size()) == BytesOf(dtype_, elements_),
             ErrorCode::kInvalidModel, "tensor of ", DTypeName(dtype_), ToString(dims_), " needs ",
             BytesOf(dtype_, elements_), " bytes, got ", bytes_.size());
}

TensorDataPtr TensorData::Owned(DType dtype, Dims dims, std::vector<std::byte> bytes) {
  auto storage = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return std::make_shared<const TensorData>(dtype, std::move(dims), *storage, storage);
}

TensorDataPtr TensorData::FromFloats(Dims dims, const std::vector<float>& values) {
  return Owned(DType::kFloat32, std::move(dims), ToBytes(values));
}

TensorDataPtr TensorData::FromInts(Dims dims, const std::vector<int64_t>& values) {
  return Owned(DType::kInt64, std::move(dims), ToBytes(values));
}

void TensorData::ReadFloats(int64_t first, std::span<float> out) const {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(LoadFloat(dtype_, bytes_.data(), first + static_cast<int64_t>(i)));
  }
}

std::vector<float> TensorData::AsFloats() const {
  std::vector<float> values(static_cast<size_t>(elements_));
  ReadFloats(0, values);
  return values;
}

std::vector<double> TensorData::AsDoubles() const {
  std::vector<double> values(static_cast<size_t>(elements_));
  for (int64_t i = 0; i < elements_; ++i) {
    values[static_cast<size_t>(i)] = LoadFloat(dtype_, bytes_.data(), i);
  }
  return values;
}

std::vector<int64_t> TensorData::AsInts() const {
  std::vector<int64_t> values(static_cast<size_t>(elements_));
  for (int64_t i = 0; i < elements_; ++i) {
    values[static_cast<size_t>(i)] = LoadInt(dtype_, bytes_.data(), i);
  }
  return values;
}

std::vector<std::byte> EncodeFloats(std::span<const float> values, DType dtype) {
  std::vector<std::byte> bytes(
      static_cast<size_t>(BytesOf(dtype, static_cast<int64_t>(values.size()))));
  const auto store = [&bytes](size_t i, auto value) {
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  };
  for (size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::kFloat32: store(i, values[i]); break;
      case DType::kFloat64: store(i, static_cast<double>(values[i])); break;
      case DType::kFloat16: store(i, FloatToHalf(values[i])); break;
      case DType::kBFloat16: store(i, FloatToBFloat16(values[i])); break;
      default: throw Error(ErrorCode::kInternal, StrCat("floats encoded as ", DTypeName(dtype)));
    }
  }
  return bytes;
}

}  // namespace weir
