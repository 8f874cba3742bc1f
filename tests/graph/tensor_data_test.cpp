#include "graph/tensor_data.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/error.h"

namespace weir {
namespace {

std::vector<std::byte> Bytes(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(TensorData, ReadsEveryIntegerWidth) {
  EXPECT_EQ(TensorData::Owned(DType::kInt8, {2}, Bytes({0xff, 0x7f}))->AsInts(), (std::vector<int64_t>{-1, 127}));
  EXPECT_EQ(TensorData::Owned(DType::kUInt8, {2}, Bytes({0xff, 0x7f}))->AsInts(), (std::vector<int64_t>{255, 127}));
  EXPECT_EQ(TensorData::Owned(DType::kInt16, {1}, Bytes({0xfe, 0xff}))->AsInts(), (std::vector<int64_t>{-2}));
  EXPECT_EQ(TensorData::Owned(DType::kUInt32, {1}, Bytes({0xff, 0xff, 0xff, 0xff}))->AsInts(),
            (std::vector<int64_t>{4294967295}));
  EXPECT_EQ(TensorData::Owned(DType::kBool, {2}, Bytes({0, 5}))->AsInts(), (std::vector<int64_t>{0, 1}));
  // Two nibbles per byte, the low one first; an odd count leaves the last high nibble unused.
  EXPECT_EQ(TensorData::Owned(DType::kInt4, {3}, Bytes({0x8f, 0x07}))->AsInts(), (std::vector<int64_t>{-1, -8, 7}));
  EXPECT_EQ(TensorData::Owned(DType::kUInt4, {3}, Bytes({0x8f, 0x07}))->AsInts(), (std::vector<int64_t>{15, 8, 7}));
}

TEST(TensorData, ReadsUnalignedFloats) {
  const auto encoded = EncodeFloats(std::vector<float>{1.5f, -2}, DType::kFloat32);
  auto shifted = std::make_shared<std::vector<std::byte>>(encoded.size() + 1);
  std::copy(encoded.begin(), encoded.end(), shifted->begin() + 1);
  const TensorData data(DType::kFloat32, {2}, std::span<const std::byte>(*shifted).subspan(1), shifted);
  EXPECT_EQ(data.AsFloats(), (std::vector<float>{1.5f, -2}));
  float second = 0;
  data.ReadFloats(1, {&second, 1});
  EXPECT_EQ(second, -2);
}

TEST(TensorData, EncodesEveryFloatType) {
  const std::vector<float> values = {1, -0.5f, 65504};
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
    EXPECT_EQ(TensorData::Owned(dtype, {3}, EncodeFloats(values, dtype))->AsFloats(), values) << DTypeName(dtype);
  }
  EXPECT_EQ(EncodeFloats(std::vector<float>{1}, DType::kBFloat16), Bytes({0x80, 0x3f}));
  EXPECT_THROW(EncodeFloats(values, DType::kInt64), Error);
}

TEST(TensorData, RefusesTheWrongSizeAndTheWrongFamily) {
  EXPECT_THROW(TensorData::Owned(DType::kFloat32, {2}, Bytes({0, 0, 0, 0})), Error);
  EXPECT_THROW(TensorData::FromInts({1}, {3})->AsFloats(), Error);
  EXPECT_THROW(TensorData::FromFloats({1}, {3})->AsInts(), Error);
}

}  // namespace
}  // namespace weir
