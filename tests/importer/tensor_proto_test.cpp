#include "importer/tensor_proto.h"

#include <gtest/gtest.h>

#include "tests/importer/model_builder.h"

namespace weir {
namespace {

using onnx::TensorProto;

TensorProto Proto(int type, const std::vector<int64_t>& dims) {
  TensorProto proto;
  proto.set_data_type(type);
  for (int64_t dim : dims) proto.add_dims(dim);
  return proto;
}

TensorDataPtr Read(const TensorProto& proto) {
  ExternalData none("model.onnx");
  const auto owner = std::make_shared<TensorProto>(proto);
  return ReadTensor(*owner, none, owner, "tensor 't'").data;
}

std::string ErrorReading(const TensorProto& proto) {
  return ErrorOf([&] { Read(proto); });
}

// IMP-07
TEST(TensorProto, DimsMustBeSane) {
  EXPECT_NE(ErrorReading(Proto(TensorProto::FLOAT, {-1})).find("tensor 't'"), std::string::npos);
  EXPECT_NE(ErrorReading(Proto(TensorProto::FLOAT, {-1, 4})), "");
  EXPECT_NE(ErrorReading(Proto(TensorProto::FLOAT, {int64_t{1} << 32, int64_t{1} << 32})), "");
  EXPECT_NE(ErrorReading(Proto(TensorProto::FLOAT, {int64_t{1} << 58})), "");  // no such bytes
  EXPECT_EQ(Read(Proto(TensorProto::FLOAT, {0, 7}))->dims(), (Dims{0, 7}));
}

// IMP-08
TEST(TensorProto, BFloat16RawDataIsRead) {
  TensorProto proto = Proto(TensorProto::BFLOAT16, {2, 2});
  proto.set_raw_data(std::string("\x80\x3e\x00\x3f\x80\x3f\x00\x40", 8));
  EXPECT_EQ(Read(proto)->AsFloats(), (std::vector<float>{0.25f, 0.5f, 1, 2}));
}

// IMP-10
TEST(TensorProto, HalvesInTypedFieldsAreBits) {
  TensorProto half = Proto(TensorProto::FLOAT16, {2});
  half.add_int32_data(0x3C00);
  half.add_int32_data(0xC000);
  EXPECT_EQ(Read(half)->AsFloats(), (std::vector<float>{1, -2}));
  TensorProto bfloat = Proto(TensorProto::BFLOAT16, {1});
  bfloat.add_int32_data(0x3E80);
  EXPECT_EQ(Read(bfloat)->AsFloats(), (std::vector<float>{0.25f}));
}

TEST(TensorProto, TypedFieldsOfEveryTypeAreRead) {
  TensorProto proto = Proto(TensorProto::DOUBLE, {1});
  proto.add_double_data(0.1);
  EXPECT_EQ(Read(proto)->AsDoubles(), (std::vector<double>{0.1}));
  proto = Proto(TensorProto::FLOAT, {});
  proto.add_float_data(1.5f);
  EXPECT_EQ(Read(proto)->AsFloats(), (std::vector<float>{1.5f}));
  proto = Proto(TensorProto::INT64, {2});
  proto.add_int64_data(-1);
  proto.add_int64_data(int64_t{1} << 40);
  EXPECT_EQ(Read(proto)->AsInts(), (std::vector<int64_t>{-1, int64_t{1} << 40}));
  proto = Proto(TensorProto::UINT32, {1});
  proto.add_uint64_data(4000000000u);
  EXPECT_EQ(Read(proto)->AsInts(), (std::vector<int64_t>{4000000000}));
  proto = Proto(TensorProto::UINT64, {1});
  proto.add_uint64_data(7);
  EXPECT_EQ(Read(proto)->AsInts(), (std::vector<int64_t>{7}));
  for (const int type : {TensorProto::INT8, TensorProto::INT16, TensorProto::INT32}) {
    proto = Proto(type, {2});
    proto.add_int32_data(-3);
    proto.add_int32_data(100);
    EXPECT_EQ(Read(proto)->AsInts(), (std::vector<int64_t>{-3, 100})) << type;
  }
  for (const int type : {TensorProto::UINT8, TensorProto::UINT16, TensorProto::BOOL}) {
    proto = Proto(type, {2});
    proto.add_int32_data(1);
    proto.add_int32_data(0);
    EXPECT_EQ(Read(proto)->AsInts(), (std::vector<int64_t>{1, 0})) << type;
  }
}

TEST(TensorProto, FourBitTypesArePackedLowNibbleFirst) {
  constexpr int kUInt4 = 21, kInt4 = 22;
  TensorProto proto = Proto(kInt4, {3});
  proto.set_raw_data(std::string("\xF1\x08", 2));
  EXPECT_EQ(Read(proto)->AsInts(), (std::vector<int64_t>{1, -1, -8}));
  proto = Proto(kUInt4, {3});
  proto.add_int32_data(0xF1);
  proto.add_int32_data(0x08);
  EXPECT_EQ(Read(proto)->AsInts(), (std::vector<int64_t>{1, 15, 8}));
}

TEST(TensorProto, WrongSizesNameTheTensor) {
  TensorProto raw = Proto(TensorProto::FLOAT, {2});
  raw.set_raw_data("1234567");
  EXPECT_NE(ErrorReading(raw).find("tensor 't': has 7 bytes"), std::string::npos);
  TensorProto typed = Proto(TensorProto::FLOAT, {2});
  typed.add_float_data(1);
  EXPECT_NE(ErrorReading(typed).find("tensor 't': has 1 stored values"), std::string::npos);
  TensorProto wide = Proto(TensorProto::INT8, {1});
  wide.add_int32_data(300);
  EXPECT_NE(ErrorReading(wide).find("300"), std::string::npos);
}

TEST(TensorProto, UnsupportedTypesAreNamed) {
  TensorProto text = Proto(TensorProto::STRING, {1});
  text.add_string_data("x");
  EXPECT_NE(ErrorReading(text).find("STRING"), std::string::npos);
  EXPECT_NE(ErrorReading(Proto(17, {1})).find("17"), std::string::npos);  // FLOAT8E4M3FN
  EXPECT_NE(ErrorReading(Proto(TensorProto::COMPLEX64, {1})).find("COMPLEX64"), std::string::npos);
}

}  // namespace
}  // namespace weir
