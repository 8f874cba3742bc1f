#include "graph_passes/symbolic_content.h"

#include <algorithm>
#include <optional>

#include "graph/op_schema.h"
#include "graph_passes/match.h"

namespace weir {
namespace {

constexpr size_t kMaxContent = 64;
using Content = std::vector<Dim>;

// Content of an integer or boolean tensor of at most rank 1, constants included.
std::optional<Content> ContentOf(const Value* value) {
  if (value == nullptr || IsFloat(value->dtype) || !value->has_shape || value->shape.size() > 1)
    return {};
  if (value->content) return value->content;
  const auto ints = IntsOf(value);
  if (!ints) return {};
  return Content(ints->begin(), ints->end());
}

// Launch dims are at least 1, so they are never equal to zero or a negative number.
Dim Equal(const Dim& a, const Dim& b) {
  if (!a.IsKnown() || !b.IsKnown()) return Dim::Unknown();
  if (a == b) return 1;
  if (a.IsConstant() && b.IsConstant()) return 0;
  const Dim& constant = a.IsConstant() ? a : b;
  const Dim& symbol = a.IsConstant() ? b : a;
  const bool differ =
      constant.IsConstant() && constant.Constant() <= 0 && symbol.Evaluate(1, 1) > 0;
  return differ ? Dim(0) : Dim::Unknown();
}

Dim Divide(const Dim& a, const Dim& b) {
  if (!a.IsConstant() || !b.IsConstant()) return DivExact(a, b);
  return b.Constant() == 0 ? Dim::Unknown() : Dim(a.Constant() / b.Constant());
}

std::optional<Dim> Apply(const std::string& op, const Dim& a, const Dim& b) {
  if (op == "Add") return a + b;
  if (op == "Sub") return a - b;
  if (op == "Mul") return a * b;
  if (op == "Div") return Divide(a, b);
  if (op == "Equal") return Equal(a, b);
  return {};
}

const Dim& At(const Content& content, size_t i) {
  return content.size() == 1 ? content[0] : content[i];
}

std::optional<Content> Binary(const Node& node) {
  const auto a = ContentOf(node.in(0)), b = ContentOf(node.in(1));
  if (!a || !b) return {};
  const size_t size = std::max(a->size(), b->size());
  if ((a->size() != size && a->size() != 1) || (b->size() != size && b->size() != 1)) return {};
  Content result;
  for (size_t i = 0; i < size; ++i) {
    const auto dim = Apply(node.op(), At(*a, i), At(*b, i));
    if (!dim) return {};
    result.push_back(*dim);
  }
  return result;
}

std::optional<Content> Where(const Node& node) {
  const auto condition = ContentOf(node.in(0)), a = ContentOf(node.in(1)),
             b = ContentOf(node.in(2));
  if (!condition || !a || !b) return {};
  const size_t size = std::max({condition->size(), a->size(), b->size()});
  Content result;
  for (size_t i = 0; i < size; ++i) {
    const Dim& chosen = At(*condition, i);
    if (!chosen.IsConstant()) return {};
    result.push_back(chosen.Constant() != 0 ? At(*a, i) : At(*b, i));
  }
  return result;
}

}  // namespace

void InferContent(Node& node) {
  Value* output = node.out(0);
  if (output == nullptr || output->content || IsFloat(output->dtype) || !output->has_shape) return;
  if (!node.schema->domain.empty() || output->shape.size() > 1) return;
  std::optional<Content> content;
  if (node.op() == "Where") content = Where(node);
  if (node.inputs.size() == 2) content = Binary(node);
  if (node.op() == "Identity" || node.op() == "Cast") content = ContentOf(node.in(0));
  if (content && content->size() <= kMaxContent) output->content = std::move(content);
}

}  // namespace weir
