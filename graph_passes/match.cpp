#include "graph_passes/match.h"

#include <algorithm>

namespace weir {

bool Is(const Node& node, std::string_view op, std::string_view domain) {
  return node.schema->name == op && node.schema->domain == domain;
}

Node* Made(const Value* value, std::string_view op) {
  if (value == nullptr || value->producer == nullptr || value->producer_index != 0) return nullptr;
  const OpSchema& schema = *value->producer->schema;
  const bool known = schema.domain.empty() || schema.domain == "ai.weir";
  return known && schema.name == op ? value->producer : nullptr;
}

std::optional<double> ScalarOf(const Value* value) {
  if (value == nullptr || value->role != Role::kConstant) return std::nullopt;
  if (value->data == nullptr || value->data->elements() != 1) return std::nullopt;
  if (IsFloat(value->data->dtype())) return value->data->AsDoubles()[0];
  return static_cast<double>(value->data->AsInts()[0]);
}

bool IsScalar(const Value* value, double wanted) {
  const auto scalar = ScalarOf(value);
  return scalar.has_value() && *scalar == wanted;
}

std::optional<std::vector<int64_t>> IntsOf(const Value* value) {
  if (value == nullptr) return std::nullopt;
  if (value->role == Role::kConstant && value->data != nullptr && !IsFloat(value->data->dtype()) &&
      value->data->elements() <= 64) {
    return value->data->AsInts();
  }
  if (!value->content.has_value()) return std::nullopt;
  std::vector<int64_t> ints;
  for (const Dim& dim : *value->content) {
    if (!dim.IsConstant()) return std::nullopt;
    ints.push_back(dim.Constant());
  }
  return ints;
}

std::optional<std::vector<int64_t>> IntsOf(const Node& node, size_t input, std::string_view name) {
  if (node.in(input) != nullptr) return IntsOf(node.in(input));
  if (node.attributes.Has(name)) return node.attributes.Ints(name);
  return std::nullopt;
}

std::optional<int64_t> NormalAxis(int64_t axis, size_t rank) {
  const auto size = static_cast<int64_t>(rank);
  if (axis < -size || axis >= size) return std::nullopt;
  return axis < 0 ? axis + size : axis;
}

Value* OtherInput(const Node& node, const Value* value) {
  if (node.inputs.size() != 2) return nullptr;
  if (node.inputs[0] == value) return node.inputs[1];
  return node.inputs[1] == value ? node.inputs[0] : nullptr;
}

Operands SplitOperands(const Node& node, std::string_view op) {
  for (size_t i = 0; i < 2 && node.inputs.size() == 2; ++i) {
    if (Node* made = Made(node.inputs[i], op)) return {made, node.inputs[1 - i]};
  }
  return {};
}

Scaled StripScale(Value* value) {
  if (Node* mul = Made(value, "Mul")) {
    for (size_t i = 0; i < 2; ++i) {
      const auto factor = ScalarOf(mul->inputs[i]);
      Value* rest = mul->inputs[1 - i];
      // A constant of higher rank than the other side would change the shape.
      if (factor && mul->inputs[i]->shape.size() <= rest->shape.size()) return {rest, *factor};
    }
  }
  if (Node* div = Made(value, "Div")) {
    const auto factor = ScalarOf(div->inputs[1]);
    const bool floating = IsFloat(div->inputs[0]->dtype);
    if (factor && floating && div->inputs[1]->shape.size() <= div->inputs[0]->shape.size()) {
      return {div->inputs[0], 1 / *factor};
    }
  }
  return {value, 1};
}

static Part PartOfSlice(const Node& slice) {
  const Value* whole = slice.in(0);
  const auto starts = IntsOf(slice, 1, "starts"), ends = IntsOf(slice, 2, "ends");
  auto axes = IntsOf(slice, 3, "axes");
  const auto steps = slice.in(4) != nullptr ? IntsOf(slice.in(4)) : std::vector<int64_t>{1};
  if (!whole->has_shape || !starts || !ends || !steps || starts->size() != 1 || steps->size() != 1)
    return {};
  if (!axes && slice.in(3) == nullptr) axes = std::vector<int64_t>{0};
  if (!axes || axes->size() != 1) return {};
  const auto axis = NormalAxis((*axes)[0], whole->shape.size());
  if (!axis || !whole->shape[static_cast<size_t>(*axis)].IsConstant()) return {};
  const int64_t size = whole->shape[static_cast<size_t>(*axis)].Constant(), step = (*steps)[0];
  if (step < 1) return {};
  const auto clamp = [size](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const int64_t start = clamp((*starts)[0]), end = clamp((*ends)[0]);
  if (end <= start) return {};
  return {slice.in(0), *axis, start, DivCeil(end - start, step), step};
}

Part PartOf(const Value* value) {
  if (value == nullptr || value->producer == nullptr) return {};
  const Node& node = *value->producer;
  if (Is(node, "Slice")) return PartOfSlice(node);
  if (!Is(node, "Split") || !node.in(0)->has_shape) return {};
  const auto axis = NormalAxis(node.attributes.Int("axis", 0), node.in(0)->shape.size());
  if (!axis) return {};
  Part part{node.in(0), *axis};
  const auto at = static_cast<size_t>(*axis);
  for (int i = 0; i <= value->producer_index; ++i) {
    const Value* output = node.outputs[static_cast<size_t>(i)];
    if (output == nullptr || !output->has_shape || !output->shape[at].IsConstant()) return {};
    part.start += part.length;
    part.length = output->shape[at].Constant();
  }
  return part;
}

bool UsedOnlyBy(const Graph& graph, const Value* value, const Node* node) {
  return !graph.IsOutput(value) && std::all_of(value->uses.begin(), value->uses.end(),
                                               [node](const Use& use) { return use.node == node; });
}

Builder At(Graph& graph, Node& node) {
  Builder builder(graph, &node);
  builder.SetSource(node.source);
  builder.SetPhase(node.phase);
  for (const Value* output : node.outputs) {
    if (output != nullptr) {
      builder.SetStem(output->name);
      break;
    }
  }
  return builder;
}

}  // namespace weir
