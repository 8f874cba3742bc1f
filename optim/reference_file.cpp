#include "optim/reference_file.h"

#include <cmath>

#include "graph/error.h"

namespace weir {

const TensorData& Need(const NamedTensors& file, const std::string& name) {
  const auto it = file.find(name);
  WEIR_CHECK(it != file.end(), ErrorCode::kInvalidArgument, "the reference file has no tensor '", name,
             "' (layout: models/README.md)", name.find('.') == std::string::npos ? "" :
             "; where its names are others than the model's file or --names has (experts one by one, in PyTorch's module stacked), write it with "
             "models/write_reference.py, which stores parameter.* to find them by, or give the module's own state_dict() as --names");
  return *it->second;
}

const TensorData& NeedInts(const NamedTensors& file, const std::string& name) {
  const TensorData& data = Need(file, name);
  WEIR_CHECK(!IsFloat(data.dtype()) && data.dims().size() == 2, ErrorCode::kInvalidArgument, "'", name, "' is ",
             DTypeName(data.dtype()), ToString(data.dims()), ", expected integers [batch, sequence]");
  return data;
}

double Scalar(const TensorData& data) {
  WEIR_CHECK(data.elements() == 1, ErrorCode::kInvalidArgument, "expected one element, got ", data.elements());
  return data.AsDoubles()[0];
}

double MaxDifference(std::span<const float> got, const std::vector<float>& expected) {
  if (got.size() != expected.size()) return HUGE_VAL;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(difference <= largest)) largest = difference;  // keeps NaN
  }
  return largest;
}

double Norm(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

double DistanceL2(std::span<const float> got, const std::vector<float>& expected) {
  if (got.size() != expected.size()) return HUGE_VAL;
  double sum = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    sum += std::pow(static_cast<double>(got[i]) - expected[i], 2);
  }
  return std::sqrt(sum);
}

}  // namespace weir
