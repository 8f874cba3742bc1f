#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"

namespace weir {

// Small questions that every rewrite asks about a graph. All answers are structural facts.

// The node that makes `value` when its op is `op` of ai.onnx or ai.weir, else nullptr.
Node* Made(const Value* value, std::string_view op);
bool Is(const Node& node, std::string_view op, std::string_view domain = "");
// The value of a one-element constant.
std::optional<double> ScalarOf(const Value* value);
bool IsScalar(const Value* value, double wanted);
// Known concrete elements of an integer tensor (constant, or content that does not depend on the
// launch).
std::optional<std::vector<int64_t>> IntsOf(const Value* value);
// The integer list that newer opsets pass as input `input` and older ones as attribute `name`.
std::optional<std::vector<int64_t>> IntsOf(const Node& node, size_t input, std::string_view name);
// `axis` counted from the front; nullopt when out of range.
std::optional<int64_t> NormalAxis(int64_t axis, size_t rank);

// For a two-input node: the other input than `value`; nullptr when `value` is neither.
Value* OtherInput(const Node& node, const Value* value);
// Splits a two-input node into (matching, rest) by which input `op` makes.
struct Operands {
  Node* made = nullptr;   // producer of the matching input
  Value* rest = nullptr;  // the other input
  explicit operator bool() const { return made != nullptr; }
};
Operands SplitOperands(const Node& node, std::string_view op);
// Removes a factor: value = inner * factor for Mul/Div by a one-element constant; factor 1 when
// neither.
struct Scaled {
  Value* inner;
  double factor;  // as one float32 constant would hold it
};
Scaled StripScale(Value* value);

// A contiguous or strided part of one axis, made by Slice or Split.
struct Part {
  Value* whole = nullptr;
  int64_t axis = 0, start = 0, length = 0, step = 1;
  explicit operator bool() const { return whole != nullptr; }
};
Part PartOf(const Value* value);

// Whether every use of `value` is by `node` and it is no graph output.
bool UsedOnlyBy(const Graph& graph, const Value* value, const Node* node);

// A Builder that works before `node` and names values and sources after it.
Builder At(Graph& graph, Node& node);

}  // namespace weir
