#pragma once
#include <memory>
#include <string>

#include "graph/tensor_data.h"
#include "importer/external_data.h"

namespace weir {

struct FileTensor {
  DType dtype = DType::kUndefined;
  Dims dims;
  TensorDataPtr data;  // null when the external file is missing
};
// Reads a tensor without copying raw or external bytes; `owner` keeps the proto alive. `what` names
// the tensor in errors ("initializer 'w'").
FileTensor ReadTensor(const onnx::TensorProto& proto, ExternalData& external,
                  const std::shared_ptr<const void>& owner, const std::string& what);

// Dtype and checked dims alone.
FileTensor ReadTensorHeader(const onnx::TensorProto& proto, const std::string& what);

}  // namespace weir
