#include "graph_passes/widen_floats.h"

#include "graph/eval.h"
#include "graph_passes/match.h"
#include "graph_passes/parameters.h"

namespace weir {
namespace {

constexpr int64_t kMaxElements = 1 << 16;

bool IsNarrow(DType dtype) { return IsFloat(dtype) && dtype != DType::kFloat32; }

TensorDataPtr Widened(const TensorData& data) {
  return TensorData::FromFloats(data.dims(), data.AsFloats());
}

void WidenAttributes(Node& node) {
  for (const char* name : {"to", "dtype"}) {
    if (node.attributes.Has(name) && IsNarrow(DTypeFromOnnx(node.attributes.Int(name)))) {
      node.attributes.Set(name, int64_t{OnnxNumber(DType::kFloat32)});
    }
  }
  const Attribute* value = node.attributes.Find("value");
  if (value == nullptr || !std::holds_alternative<TensorDataPtr>(*value)) return;
  const TensorDataPtr data = std::get<TensorDataPtr>(*value);
  if (IsNarrow(data->dtype())) node.attributes.Set("value", Widened(*data));
}

}  // namespace

std::string WidenFloats::doc() const {
  return "Cast<to = bfloat16>(x float) ==> x;  constant bfloat16[2] ==> constant float[2]\n"
         "Float tensors of the file keep their dtype in ParameterInfo, so this is where they are "
         "marked.";
}

bool WidenFloats::Run(Graph& graph, PassContext& context) {
  MarkInitializers(graph);
  for (const auto& value : graph.values()) {
    if (!IsNarrow(value->dtype)) continue;
    value->dtype = DType::kFloat32;
    // Weights are never read here: they are converted when they are loaded.
    const bool small = value->data != nullptr && value->data->elements() <= kMaxElements;
    if (small || (value->data != nullptr && !IsInitializer(value.get())))
      value->data = Widened(*value->data);
    ++context.matches;
  }
  for (const auto& node : graph.nodes()) WidenAttributes(*node);
  return context.matches > 0;
}

}  // namespace weir
