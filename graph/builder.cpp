#include "graph/builder.h"

namespace weir {

std::vector<Value*> Builder::Ops(std::string_view op, std::vector<Value*> inputs, int outputs,
                                 Attributes attributes) {
  const OpSchema& schema = GetOp(op);
  std::vector<Value*> results;
  for (int i = 0; i < outputs; ++i) {
    results.push_back(graph_.AddValue(stem_.empty() ? std::string(op) : stem_));
  }
  Node* node = graph_.AddNode(schema, std::move(inputs), results, std::move(attributes), before_);
  node->phase = phase_;
  node->source = source_;
  InferNode(*node);
  return results;
}

Value* Builder::Op(std::string_view op, std::vector<Value*> inputs, Attributes attributes) {
  return Ops(op, std::move(inputs), 1, std::move(attributes))[0];
}

Value* Builder::Ints(std::vector<int64_t> values) {
  const Dims dims = {static_cast<int64_t>(values.size())};
  return graph_.AddConstant("const", TensorData::FromInts(dims, values));
}

Value* Builder::Int(int64_t value) {
  return graph_.AddConstant("const", TensorData::FromInts({}, {value}));
}

Value* Builder::Float(float value) {
  return graph_.AddConstant("const", TensorData::FromFloats({}, {value}));
}

}  // namespace weir
