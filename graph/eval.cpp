#include "graph/eval.h"

#include <cstring>

#include "graph/op_schema.h"

namespace weir {

Array<float> ToArray(const TensorData& data) {
  Array<float> array;
  array.dtype = data.dtype();
  array.dims = data.dims();
  if (IsFloat(data.dtype())) {
    array.f = data.AsFloats();
  } else {
    array.i = data.AsInts();
  }
  return array;
}

template <class T>
static void Store(std::vector<std::byte>& bytes, const std::vector<int64_t>& values) {
  for (size_t k = 0; k < values.size(); ++k) {
    const T value = static_cast<T>(values[k]);
    std::memcpy(bytes.data() + k * sizeof(T), &value, sizeof(T));
  }
}

TensorDataPtr ToTensorData(const Array<float>& array) {
  if (array.is_float()) {
    return TensorData::Owned(array.dtype, array.dims, EncodeFloats(array.f, array.dtype));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(BytesOf(array.dtype, array.elements())));
  switch (BitsOf(array.dtype)) {
    case 64: Store<int64_t>(bytes, array.i); break;
    case 32: Store<int32_t>(bytes, array.i); break;
    case 16: Store<int16_t>(bytes, array.i); break;
    case 8: Store<uint8_t>(bytes, array.i); break;
    default: throw Error(ErrorCode::kInternal, StrCat("cannot store ", DTypeName(array.dtype)));
  }
  return TensorData::Owned(array.dtype, array.dims, std::move(bytes));
}

std::vector<Array<float>> Evaluate(const OpSchema& schema, const Attributes& attributes,
                                   const std::vector<const Array<float>*>& inputs, int outputs) {
  WEIR_CHECK(schema.reference_f32 != nullptr, ErrorCode::kUnsupportedOp, "op ", schema.name,
             " cannot be evaluated here: it has no reference");
  Eval<float> eval{.attributes = attributes, .in = inputs, .out = {}};
  eval.out.resize(static_cast<size_t>(outputs));
  schema.reference_f32(eval);
  return std::move(eval.out);
}

}  // namespace weir
