#include "graph_passes/shape_tensor.h"

#include <algorithm>

#include "graph/error.h"

namespace weir {
namespace {

// One piece of a shape: constants, or dims [start, end) of the launch input, or a product.
struct Segment {
  std::vector<int64_t> constants;
  int64_t start = 0, end = 0;
  std::optional<Dim> product;
};

std::vector<Segment> Segments(const Shape& dims) {
  std::vector<Segment> segments;
  for (const Dim& dim : dims) {
    Segment* last = segments.empty() ? nullptr : &segments.back();
    if (dim.IsConstant()) {
      if (last == nullptr || last->constants.empty()) last = &segments.emplace_back();
      last->constants.push_back(dim.Constant());
    } else if (dim == Dim::Sequence() && last != nullptr && last->start == 0 && last->end == 1) {
      last->end = 2;
    } else if (dim == Dim::Batch() || dim == Dim::Sequence()) {
      const int64_t axis = dim == Dim::Batch() ? 0 : 1;
      segments.push_back({.constants = {}, .start = axis, .end = axis + 1, .product = {}});
    } else {
      segments.push_back({.constants = {}, .start = 0, .end = 0, .product = dim});
    }
  }
  return segments;
}

Value* ShapePart(Builder& builder, Value* input, int64_t start, int64_t end) {
  if (start == 0 && end == 2) return builder.Op("Shape", {input});
  if (start == 0) return builder.Op("Shape", {input}, {{"end", end}});
  return builder.Op("Shape", {input}, {{"start", start}});
}

// coefficient * batch^i * sequence^j as a chain of Mul.
Value* Multiplied(Builder& builder, Value* input, const Dim& dim) {
  const int64_t coefficient = dim.Evaluate(1, 1);
  const auto power = [coefficient](int64_t value) {
    int count = 0;
    for (value /= coefficient; value > 1; value /= 2) ++count;
    return count;
  };
  Value* product = coefficient == 1 ? nullptr : builder.Ints({coefficient});
  for (int64_t axis = 0; axis < 2; ++axis) {
    const int count = power(axis == 0 ? dim.Evaluate(2, 1) : dim.Evaluate(1, 2));
    for (int i = 0; i < count; ++i) {
      Value* factor = ShapePart(builder, input, axis, axis + 1);
      product = product == nullptr ? factor : builder.Op("Mul", {factor, product});
    }
  }
  return product;
}

}  // namespace

Value* LaunchInput(const Graph& graph) {
  for (Value* input : graph.inputs) {
    const Shape& shape = input->shape;
    if (shape.size() == 2 && shape[0] == Dim::Batch() && shape[1] == Dim::Sequence()) return input;
  }
  return nullptr;
}

Value* ShapeTensor(Builder& builder, const Shape& dims) {
  if (!IsKnown(dims)) return nullptr;
  if (IsConcrete(dims)) return builder.Ints(ToDims(dims));
  Value* input = LaunchInput(builder.graph());
  if (input == nullptr) return nullptr;
  std::vector<Value*> parts;
  for (const Segment& segment : Segments(dims)) {
    if (!segment.constants.empty()) {
      parts.push_back(builder.Ints(segment.constants));
    } else if (segment.product) {
      parts.push_back(Multiplied(builder, input, *segment.product));
    } else {
      parts.push_back(ShapePart(builder, input, segment.start, segment.end));
    }
  }
  return parts.size() == 1 ? parts[0] : builder.Op("Concat", parts, {{"axis", int64_t{0}}});
}

std::optional<std::vector<int64_t>> ReshapeTarget(const Shape& from, const Shape& to) {
  std::vector<int64_t> target;
  bool inferred = false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].IsConstant() && to[i].Constant() == 0) return std::nullopt;
    if (i < from.size() && from[i] == to[i]) {
      target.push_back(0);
    } else if (to[i].IsConstant()) {
      target.push_back(to[i].Constant());
    } else if (!inferred) {
      target.push_back(-1);
      inferred = true;
    } else {
      return std::nullopt;
    }
  }
  return target;
}

std::optional<std::vector<int64_t>> ExpandTarget(const Shape& from, const Shape& to) {
  std::vector<int64_t> target;
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t missing = to.size() - from.size();
    if (i >= missing && from[i - missing] == to[i]) {
      target.push_back(1);
    } else if (to[i].IsConstant()) {
      target.push_back(to[i].Constant());
    } else {
      return std::nullopt;
    }
  }
  return target;
}

Value* ReshapeTo(Builder& builder, Value* x, const Shape& to) {
  if (Same(x->shape, to)) return x;
  const auto target = ReshapeTarget(x->shape, to);
  Value* shape = target ? builder.Ints(*target) : ShapeTensor(builder, to);
  WEIR_CHECK(shape != nullptr, ErrorCode::kInternal, "cannot reshape ", ToString(x->shape), " to ",
             ToString(to));
  return builder.Op("Reshape", {x, shape});
}

Value* TransposeBy(Builder& builder, Value* x, const std::vector<int64_t>& perm) {
  if (std::is_sorted(perm.begin(), perm.end())) return x;
  return builder.Op("Transpose", {x}, {{"perm", perm}});
}

}  // namespace weir
