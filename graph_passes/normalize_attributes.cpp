#include <string>
#include <unordered_map>

#include "graph_passes/match.h"
#include "graph_passes/simplify.h"

namespace weir {
namespace {

struct Default {
  const char* name;
  Attribute value;
};

const std::vector<Default>& DefaultsOf(const OpSchema& schema) {
  static const std::unordered_map<std::string, std::vector<Default>> table = {
      {"TopK", {{"largest", int64_t{1}}, {"sorted", int64_t{1}}}},
      {"Gemm", {{"alpha", 1.0}, {"beta", 1.0}, {"transA", int64_t{0}}, {"transB", int64_t{0}}}},
      {"Gelu", {{"approximate", std::string("none")}}},
      {"GatherND", {{"batch_dims", int64_t{0}}}},
      {"Shape", {{"start", int64_t{0}}}},
      {"Reshape", {{"allowzero", int64_t{0}}}},
      {"CumSum", {{"exclusive", int64_t{0}}, {"reverse", int64_t{0}}}},
      {"Cast", {{"saturate", int64_t{1}}}},
      {"ScatterND", {{"reduction", std::string("none")}}},
      {"ScatterElements", {{"reduction", std::string("none")}}},
      {"ai.weir::Attention", {{"causal", int64_t{1}}, {"window", int64_t{0}}, {"softcap", 0.0}}},
      {"ai.weir::Rotary", {{"input_interleaved", int64_t{0}}, {"output_interleaved", int64_t{0}}}},
      {"ai.weir::Experts", {{"alpha", 1.0}, {"beta", 0.0}}},
  };
  static const std::vector<Default> reduce = {{"keepdims", int64_t{1}},
                                              {"noop_with_empty_axes", int64_t{0}}};
  static const std::vector<Default> none;
  if (schema.name.starts_with("Reduce")) return reduce;
  const auto it = table.find((schema.domain.empty() ? "" : schema.domain + "::") + schema.name);
  return it == table.end() ? none : it->second;
}

// Axis of ops that leave it out when it is the default.
std::optional<int64_t> DefaultAxis(const std::string& op) {
  if (op == "Softmax" || op == "LogSoftmax" || op == "TopK") return -1;
  if (op == "Gather" || op == "GatherElements" || op == "ScatterElements" || op == "Split")
    return 0;
  return op == "Concat" ? std::optional<int64_t>(0) : std::nullopt;
}

bool NormalizeAxis(Node& node) {
  const auto fallback = DefaultAxis(node.op());
  if (!fallback || !node.in(0) || !node.in(0)->has_shape) return false;
  const auto axis = NormalAxis(node.attributes.Int("axis", *fallback), node.in(0)->shape.size());
  if (!axis || (node.attributes.Has("axis") && node.attributes.Int("axis") == *axis)) return false;
  node.attributes.Set("axis", *axis);
  return true;
}

// ReduceX and friends: axes as a sorted non-negative input.
bool NormalizeAxes(Graph& graph, Node& node) {
  if (!node.op().starts_with("Reduce") || !node.in(0)->has_shape) return false;
  auto axes = IntsOf(node, 1, "axes");
  if (!axes) return false;
  for (int64_t& axis : *axes) {
    const auto normal = NormalAxis(axis, node.in(0)->shape.size());
    if (!normal) return false;
    axis = *normal;
  }
  const bool was_attribute = node.attributes.Has("axes");
  node.attributes.Erase("axes");
  return Rewrite(graph, node).SetInts(1, *axes) || was_attribute;
}

// Split: explicit sizes instead of a count.
bool NormalizeSplit(Graph& graph, Node& node) {
  if (node.op() != "Split" || !node.in(0)->has_shape || node.in(1) != nullptr) return false;
  const auto axis = NormalAxis(node.attributes.Int("axis", 0), node.in(0)->shape.size());
  std::vector<int64_t> sizes;
  for (const Value* output : node.outputs) {
    if (!axis || output == nullptr || !output->has_shape) return false;
    const Dim& dim = output->shape[static_cast<size_t>(*axis)];
    if (!dim.IsConstant()) return false;
    sizes.push_back(dim.Constant());
  }
  node.attributes.Erase("num_outputs");
  node.attributes.Erase("split");
  return Rewrite(graph, node).SetInts(1, sizes);
}

}  // namespace

bool NormalizeAttributes(Graph& graph, Node& node) {
  bool changed = NormalizeAxis(node);
  changed |= NormalizeAxes(graph, node);
  changed |= NormalizeSplit(graph, node);
  // The selection is what matters; an order is always allowed.
  if (node.op() == "TopK") node.attributes.Erase("sorted");
  for (const Default& item : DefaultsOf(*node.schema)) {
    const Attribute* value = node.attributes.Find(item.name);
    if (value == nullptr || !Equal(*value, item.value)) continue;
    node.attributes.Erase(item.name);
    changed = true;
  }
  return changed;
}

}  // namespace weir
