#include "graph_passes/accumulator.h"

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {

const Value* AccumulatorOf(const Value* value) {
  while (value->producer != nullptr) {
    const Value* source = nullptr;
    for (const auto& [output, input] : value->producer->schema->aliases) {
      if (output == value->producer_index) source = value->producer->in(static_cast<size_t>(input));
    }
    WEIR_CHECK(source != nullptr, ErrorCode::kInternal, "'", value->name, "' is no version of an accumulator");
    value = source;
  }
  return value;
}

Value& ParameterOf(const Graph& graph, const Value& accumulator) {
  const std::string name = accumulator.name.substr(0, accumulator.name.size() - std::string_view(".grad").size());
  Value* parameter = graph.FindValue(name);
  WEIR_CHECK(parameter != nullptr && parameter->parameter != nullptr, ErrorCode::kInternal, "accumulator '",
             accumulator.name, "' belongs to no parameter");
  return *parameter;
}

}  // namespace weir
