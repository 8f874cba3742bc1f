#include "kernels/elementwise/infer.h"

#include <algorithm>

namespace weir {

void InferUnary(InferContext& c) {
  c.SetDType(0, c.in(0)->dtype);
  if (c.HasShape(0)) c.SetOutput(0, c.in(0)->dtype, c.shape(0));
}

void InferUnaryBool(InferContext& c) {
  c.SetDType(0, DType::kBool);
  if (c.HasShape(0)) c.SetOutput(0, DType::kBool, c.shape(0));
}

DType CommonDType(InferContext& c, size_t first) {
  DType dtype = DType::kUndefined;
  for (size_t i = first; i < c.node.inputs.size(); ++i) {
    const DType next = c.in(i) == nullptr ? DType::kUndefined : c.in(i)->dtype;
    if (next == DType::kUndefined) continue;
    if (dtype != DType::kUndefined && dtype != next) {
      c.Fail(StrCat("input ", i, " is ", DTypeName(next), ", the inputs before it are ",
                    DTypeName(dtype), "; ONNX wants one type: insert a Cast"));
    }
    dtype = next;
  }
  return dtype;
}

void InferBroadcast(InferContext& c, size_t first, DType dtype) {
  const DType common = CommonDType(c, first);
  if (dtype == DType::kUndefined) dtype = common;
  c.SetDType(0, dtype);
  Shape shape;
  for (size_t i = 0; i < c.node.inputs.size(); ++i) {
    if (c.in(i) == nullptr) continue;
    if (!c.HasShape(i)) return;
    const auto next = Broadcast(shape, c.shape(i));
    if (!next) {
      c.Fail(StrCat("input ", i, " of shape ", ToString(c.shape(i)), " does not broadcast with ",
                    ToString(shape)));
    }
    shape = *next;
  }
  c.SetOutput(0, dtype, shape);
}

std::optional<int64_t> ConstantOf(const Dim& dim) {
  return dim.IsConstant() ? std::optional(dim.Constant()) : std::nullopt;
}

std::optional<int> Compare(const Dim& a, const Dim& b) {
  if (!a.IsKnown() || !b.IsKnown()) return std::nullopt;
  const auto sign = [](int64_t v) { return (v > 0) - (v < 0); };
  if (const Dim difference = a - b; difference.IsKnown()) return sign(difference.Evaluate(1, 1));
  // A symbolic dim is at least its coefficient when that is positive.
  const int64_t x = a.Evaluate(1, 1), y = b.Evaluate(1, 1);
  if (b.IsConstant() && x > 0 && x > y) return 1;
  if (a.IsConstant() && y > 0 && y > x) return -1;
  return std::nullopt;
}

void PropagateContent(InferContext& c, DimFunction function) {
  const Value* out = c.node.out(0);
  if (out == nullptr || IsFloat(out->dtype) || !out->has_shape || out->shape.size() > 1) return;
  size_t length = 1;
  for (size_t i = 0; i < c.node.inputs.size(); ++i) {
    if (c.content(i) == nullptr) return;
    if (c.content(i)->size() != 1) length = c.content(i)->size();
  }
  std::vector<Dim> result, arguments(c.node.inputs.size());
  for (size_t k = 0; k < length; ++k) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto& content = *c.content(i);
      arguments[i] = content[content.size() == 1 ? 0 : k];
    }
    result.push_back(function(c.node, arguments));
  }
  c.SetContent(0, std::move(result));
}

}  // namespace weir
