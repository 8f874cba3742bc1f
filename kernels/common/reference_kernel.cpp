#include "kernels/common/reference_kernel.h"

#include <cstring>

namespace weir {

Array<float> ReadArray(const Tensor& tensor) {
  return ToArray(TensorData(tensor.dtype, tensor.dims,
                            {tensor.bytes, static_cast<size_t>(tensor.size_bytes())}, nullptr));
}

void WriteArray(const Array<float>& array, const Tensor& tensor) {
  WEIR_CHECK(array.dims == tensor.dims && array.dtype == tensor.dtype, ErrorCode::kInternal,
             "reference made ", DTypeName(array.dtype), ToString(array.dims), ", planned ",
             DTypeName(tensor.dtype), ToString(tensor.dims));
  const TensorDataPtr data = ToTensorData(array);
  if (!data->bytes().empty()) std::memcpy(tensor.bytes, data->bytes().data(), data->bytes().size());
}

void LaunchReference(KernelContext& context) {
  std::vector<Array<float>> inputs;
  inputs.reserve(context.inputs.size());
  std::vector<const Array<float>*> pointers;
  for (const Tensor& tensor : context.inputs) {
    inputs.push_back(tensor ? ReadArray(tensor) : Array<float>{});
    pointers.push_back(tensor ? &inputs.back() : nullptr);
  }
  const auto outputs = Evaluate(*context.node.schema, context.node.attributes, pointers,
                                static_cast<int>(context.outputs.size()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (context.outputs[i]) WriteArray(outputs[i], context.outputs[i]);
  }
}

}  // namespace weir
