#pragma once
#include <span>
#include <string>
#include <vector>

#include "graph_passes/pipeline.h"

namespace weir {

// Tensors of a stored reference (layout: models/README.md). Throw InvalidArgument when it has none of that name or kind.
const TensorData& Need(const NamedTensors& file, const std::string& name);
const TensorData& NeedInts(const NamedTensors& file, const std::string& name);  // [batch, sequence]
double Scalar(const TensorData& data);

// How far values are from those of a reference: infinitely where the counts differ; NaN stays NaN.
double MaxDifference(std::span<const float> got, const std::vector<float>& expected);
double DistanceL2(std::span<const float> got, const std::vector<float>& expected);
double Norm(std::span<const float> values);

}  // namespace weir
