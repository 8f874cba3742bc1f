#pragma once
#include <unordered_map>

#include "graph/eval.h"
#include "graph/graph.h"
#include "graph/op_schema.h"

namespace weir {

inline auto ReferenceOf(const OpSchema& schema, double) { return schema.reference_f64; }
inline auto ReferenceOf(const OpSchema& schema, std::complex<double>) { return schema.reference_c128; }

template <class T>
using Values = std::unordered_map<const Value*, Array<T>>;

// Evaluates the forward nodes of a concrete graph by the ops' references in precision T. `values` holds
// inputs and parameters on entry and everything on return.
template <class T>
void EvaluateForward(const Graph& graph, Values<T>& values) {
  for (const Value* constant : graph.ValuesWithRole(Role::kConstant)) {
    const Array<float> data = ToArray(*constant->data);
    Array<T> array;
    array.dtype = data.dtype;
    array.dims = data.dims;
    array.i = data.i;
    for (float v : data.f) array.f.push_back(T(v));
    values[constant] = std::move(array);
  }
  for (const auto& node : graph.nodes()) {
    if (node->phase != Phase::kForward) continue;
    Eval<T> eval{.attributes = node->attributes, .in = {}, .out = {}};
    for (const Value* input : node->inputs) eval.in.push_back(input ? &values.at(input) : nullptr);
    eval.out.resize(node->outputs.size());
    ReferenceOf(*node->schema, T{})(eval);
    for (size_t i = 0; i < node->outputs.size(); ++i) {
      if (node->outputs[i] != nullptr) values[node->outputs[i]] = std::move(eval.out[i]);
    }
  }
}

}  // namespace weir
