#include "graph_passes/probe.h"

#include <algorithm>
#include <limits>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

bool IsRandom(const Node& node) {
  return node.op().starts_with("Random") || node.op() == "Dropout";
}

bool ReadsShapeOnly(const Node& node) { return Is(node, "Shape") || Is(node, "Size"); }

bool HasLaunchContent(const Value& value) {
  return value.content && value.has_shape && IsConcrete(value.shape) && !IsFloat(value.dtype) &&
         IsKnown(*value.content);
}

}  // namespace

LaunchConstants::LaunchConstants(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    const bool shape =
        ReadsShapeOnly(*node) && node->in(0)->has_shape && IsKnown(node->in(0)->shape);
    const bool follows =
        std::all_of(node->inputs.begin(), node->inputs.end(),
                    [this](const Value* input) { return input == nullptr || Has(input); });
    if (!shape && (!follows || IsRandom(*node) || node->schema->has_side_effect)) continue;
    for (const Value* output : node->outputs) {
      if (output != nullptr) values_.insert(output);
    }
  }
}

bool LaunchConstants::Has(const Value* value) const {
  if (value->role == Role::kConstant) return value->data != nullptr;
  return HasLaunchContent(*value) || values_.contains(value);
}

const Array<float>* Probe::Evaluate(const Value* value) {
  const auto known = memo_.find(value);
  if (known != memo_.end()) return known->second.get();
  auto result = std::make_unique<Array<float>>();
  // A value being computed cannot be needed again: the graph is acyclic.
  if (!Compute(value, *result)) result.reset();
  return (memo_[value] = std::move(result)).get();
}

bool Probe::Compute(const Value* value, Array<float>& result) {
  if (!constants_.Has(value)) return false;
  if (const auto it = substitutes_.find(value); it != substitutes_.end()) {
    result = Array<float>::Ints(ToDims(value->shape), value->dtype, it->second);
    return true;
  }
  if (value->role == Role::kConstant) {
    if (value->data->elements() > kMaxElements) return false;
    result = ToArray(*value->data);
    return true;
  }
  if (HasLaunchContent(*value)) {
    result = Array<float>::Ints(ToDims(value->shape), value->dtype);
    for (size_t i = 0; i < result.i.size(); ++i)
      result.i[i] = (*value->content)[i].Evaluate(batch_, sequence_);
    return true;
  }
  if (value->producer == nullptr) return false;
  if (value->has_shape && IsKnown(value->shape)) {
    if (Product(value->shape).Evaluate(batch_, sequence_) > kMaxElements) return false;
  }
  return ComputeNode(*value->producer, value->producer_index, result);
}

bool Probe::ComputeNode(const Node& node, int output, Array<float>& result) {
  if (node.schema->reference_f32 == nullptr) return false;
  std::vector<const Array<float>*> inputs;
  Array<float> shaped;
  for (const Value* input : node.inputs) {
    if (ReadsShapeOnly(node)) {
      for (const Dim& dim : input->shape) shaped.dims.push_back(dim.Evaluate(batch_, sequence_));
      inputs.push_back(&shaped);
      continue;
    }
    inputs.push_back(input == nullptr ? nullptr : Evaluate(input));
    if (input != nullptr && inputs.back() == nullptr) return false;
  }
  try {
    auto results = weir::Evaluate(*node.schema, node.attributes, inputs,
                                  static_cast<int>(node.outputs.size()));
    result = std::move(results[static_cast<size_t>(output)]);
    return true;
  } catch (const Error&) {
    return false;  // a substituted constant may be out of range for some op
  }
}

std::vector<const Value*> LargeIntegers(const Value* value, int64_t least) {
  std::vector<const Value*> found, stack = {value};
  std::unordered_set<const Value*> seen;
  while (!stack.empty()) {
    const Value* at = stack.back();
    stack.pop_back();
    if (at == nullptr || !seen.insert(at).second) continue;
    if (at->role == Role::kConstant) {
      const auto scalar = IsFloat(at->dtype) ? std::nullopt : ScalarOf(at);
      if (scalar && *scalar >= static_cast<double>(least) &&
          *scalar < std::numeric_limits<int32_t>::max()) {
        found.push_back(at);
      }
      continue;
    }
    if (HasLaunchContent(*at) || at->producer == nullptr || ReadsShapeOnly(*at->producer)) continue;
    for (const Value* input : at->producer->inputs) stack.push_back(input);
  }
  return found;
}

}  // namespace weir
