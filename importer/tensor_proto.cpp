#include "importer/tensor_proto.h"

#include <cstring>

#include "graph/error.h"

namespace weir {
namespace {

std::string OnnxTypeName(int number) {
  if (onnx::TensorProto_DataType_IsValid(number)) {
    return onnx::TensorProto_DataType_Name(static_cast<onnx::TensorProto_DataType>(number));
  }
  return StrCat("data type ", number);
}

// Typed fields hold small types widened: each value is narrowed to `Stored` bit for bit. A value
// that has more bits than the type is an error.
template <class Stored, class Field>
std::vector<std::byte> Narrowed(const Field& field, int64_t count, const std::string& what) {
  WEIR_CHECK(field.size() == count, ErrorCode::kInvalidModel, what, ": has ", field.size(),
             " stored values, but its shape needs ", count);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * sizeof(Stored));
  for (int i = 0; i < field.size(); ++i) {
    const auto value = field.Get(i);
    const auto stored = static_cast<Stored>(value);
    if constexpr (sizeof(Stored) < sizeof(value)) {
      constexpr int64_t kEnd = int64_t{1} << (8 * sizeof(Stored));
      WEIR_CHECK(static_cast<int64_t>(value) >= -kEnd / 2 && static_cast<int64_t>(value) < kEnd,
                 ErrorCode::kInvalidModel, what, ": value ", value, " at position ", i,
                 " does not fit its type");
    }
    std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(Stored), &stored, sizeof(Stored));
  }
  return bytes;
}

std::vector<std::byte> TypedBytes(const onnx::TensorProto& proto, const FileTensor& tensor,
                                  const std::string& what) {
  const int64_t count = NumElements(tensor.dims);
  switch (tensor.dtype) {
    case DType::kFloat32:
      return Narrowed<float>(proto.float_data(), count, what);
    case DType::kFloat64:
      return Narrowed<double>(proto.double_data(), count, what);
    case DType::kInt64:
      return Narrowed<int64_t>(proto.int64_data(), count, what);
    case DType::kUInt64:
      return Narrowed<uint64_t>(proto.uint64_data(), count, what);
    case DType::kUInt32:
      return Narrowed<uint32_t>(proto.uint64_data(), count, what);
    case DType::kInt32:
      return Narrowed<int32_t>(proto.int32_data(), count, what);
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUInt16:
      return Narrowed<uint16_t>(proto.int32_data(), count, what);
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return Narrowed<uint8_t>(proto.int32_data(), count, what);
    case DType::kInt4:
    case DType::kUInt4:
      return Narrowed<uint8_t>(proto.int32_data(), (count + 1) / 2, what);
    case DType::kUndefined:
      break;
  }
  throw Error(ErrorCode::kInternal, what);
}

}  // namespace

FileTensor ReadTensorHeader(const onnx::TensorProto& proto, const std::string& what) {
  FileTensor tensor;
  tensor.dtype = DTypeFromOnnx(proto.data_type());
  WEIR_CHECK(tensor.dtype != DType::kUndefined, ErrorCode::kInvalidModel, what, ": element type ",
             OnnxTypeName(proto.data_type()), " is not supported");
  WEIR_CHECK(!proto.has_segment(), ErrorCode::kInvalidModel, what, ": segments are not supported");
  tensor.dims.assign(proto.dims().begin(), proto.dims().end());
  try {
    NumElements(tensor.dims);
  } catch (Error& error) {
    throw Error(ErrorCode::kInvalidModel, StrCat(what, ": ", error.message()));
  }
  return tensor;
}

FileTensor ReadTensor(const onnx::TensorProto& proto, ExternalData& external,
                  const std::shared_ptr<const void>& owner, const std::string& what) {
  FileTensor tensor = ReadTensorHeader(proto, what);
  const int64_t bytes = BytesOf(tensor.dtype, NumElements(tensor.dims));
  if (proto.data_location() == onnx::TensorProto::EXTERNAL) {
    if (const auto mapped = external.Map(proto, bytes, what)) {
      tensor.data = std::make_shared<const TensorData>(tensor.dtype, tensor.dims, mapped->span,
                                                       mapped->keepalive);
    }
  } else if (proto.has_raw_data()) {
    const std::string& raw = proto.raw_data();
    WEIR_CHECK(static_cast<int64_t>(raw.size()) == bytes, ErrorCode::kInvalidModel, what, ": has ",
               raw.size(), " bytes of raw data, but ", DTypeName(tensor.dtype),
               ToString(tensor.dims), " needs ", bytes);
    tensor.data = std::make_shared<const TensorData>(
        tensor.dtype, tensor.dims, std::as_bytes(std::span(raw.data(), raw.size())), owner);
  } else {
    tensor.data = TensorData::Owned(tensor.dtype, tensor.dims, TypedBytes(proto, tensor, what));
  }
  return tensor;
}

}  // namespace weir
