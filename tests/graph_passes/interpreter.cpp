#include "tests/graph_passes/interpreter.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "graph/parameter.h"

namespace weir {

Array<float> Interpret(const Graph& graph, const std::unordered_map<std::string, Array<float>>& feeds) {
  std::unordered_map<const Value*, Array<float>> values;
  for (const auto& value : graph.values()) {
    if (value->role == Role::kConstant) {
      WEIR_CHECK(value->data != nullptr, ErrorCode::kInternal, "constant '", value->name, "' has no bytes");
      values[value.get()] = ToArray(*value->data);
    } else if (value->role == Role::kParameter) {
      Array<float> array = Array<float>::Floats(ToDims(value->shape));
      array.f = LoadParameter(graph, *value);
      values[value.get()] = std::move(array);
    } else if (value->role == Role::kInput) {
      values[value.get()] = feeds.at(value->name);
    }
  }
  for (const auto& node : graph.nodes()) {
    std::vector<const Array<float>*> inputs;
    for (const Value* input : node->inputs) inputs.push_back(input == nullptr ? nullptr : &values.at(input));
    auto results = Evaluate(*node->schema, node->attributes, inputs, static_cast<int>(node->outputs.size()));
    for (size_t i = 0; i < results.size(); ++i) {
      if (node->outputs[i] != nullptr) values[node->outputs[i]] = std::move(results[i]);
    }
  }
  return values.at(graph.outputs[0]);
}

double RelativeError(const Array<float>& a, const Array<float>& b) {
  WEIR_CHECK(a.dims == b.dims, ErrorCode::kInternal, "shapes ", ToString(a.dims), " and ", ToString(b.dims));
  double error = 0, size = 0;
  for (size_t i = 0; i < b.f.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(a.f[i]) - static_cast<double>(b.f[i])));
    size = std::max(size, std::abs(static_cast<double>(b.f[i])));
    if (std::isnan(a.f[i])) return INFINITY;
  }
  return error / size;
}

}  // namespace weir
