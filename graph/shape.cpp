#include "graph/shape.h"

#include <algorithm>

#include "graph/error.h"

namespace weir {

int64_t NumElements(const Dims& dims) {
  int64_t product = 1;
  for (int64_t dim : dims) {
    WEIR_CHECK(dim >= 0, ErrorCode::kInvalidShape, "negative dimension in ", ToString(dims));
    int64_t next = 0;
    WEIR_CHECK(!__builtin_mul_overflow(product, dim, &next) && next < (int64_t{1} << 60),
               ErrorCode::kInvalidShape, "shape ", ToString(dims), " has more than 2^60 elements");
    product = next;
  }
  return product;
}

std::string ToString(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

Dim Dim::Symbol(int batch_power, int sequence_power) {
  Dim dim(1);
  dim.batch_power_ = batch_power;
  dim.sequence_power_ = sequence_power;
  return dim;
}

int64_t Dim::Constant() const {
  WEIR_CHECK(IsConstant(), ErrorCode::kInternal, "dimension ", ToString(*this), " is not constant");
  return coefficient_;
}

int64_t Dim::Evaluate(int64_t batch, int64_t sequence) const {
  WEIR_CHECK(known_, ErrorCode::kInternal, "cannot evaluate an unknown dimension");
  int64_t value = coefficient_;
  for (int i = 0; i < batch_power_; ++i) value *= batch;
  for (int i = 0; i < sequence_power_; ++i) value *= sequence;
  return value;
}

Dim operator*(const Dim& a, const Dim& b) {
  if ((a.IsConstant() && a.coefficient_ == 0) || (b.IsConstant() && b.coefficient_ == 0)) return 0;
  if (!a.known_ || !b.known_) return Dim::Unknown();
  Dim product = a;
  if (__builtin_mul_overflow(a.coefficient_, b.coefficient_, &product.coefficient_)) {
    return Dim::Unknown();
  }
  product.batch_power_ += b.batch_power_;
  product.sequence_power_ += b.sequence_power_;
  return product;
}

static bool LikeTerms(const Dim& a, const Dim& b, int ab, int as, int bb, int bs) {
  return a.IsKnown() && b.IsKnown() && ab == bb && as == bs;
}

Dim operator+(const Dim& a, const Dim& b) {
  if (a.IsConstant() && a.coefficient_ == 0) return b;
  if (b.IsConstant() && b.coefficient_ == 0) return a;
  if (!LikeTerms(a, b, a.batch_power_, a.sequence_power_, b.batch_power_, b.sequence_power_)) {
    return Dim::Unknown();
  }
  Dim sum = a;
  if (__builtin_add_overflow(a.coefficient_, b.coefficient_, &sum.coefficient_)) {
    return Dim::Unknown();
  }
  if (sum.coefficient_ == 0) return 0;
  return sum;
}

Dim operator-(const Dim& a, const Dim& b) { return a + Dim(-1) * b; }

Dim DivExact(const Dim& a, const Dim& b) {
  if (!a.known_ || !b.known_ || b.coefficient_ == 0) return Dim::Unknown();
  if (a.IsConstant() && a.coefficient_ == 0) return 0;
  if (a.coefficient_ % b.coefficient_ != 0 || a.batch_power_ < b.batch_power_ ||
      a.sequence_power_ < b.sequence_power_) {
    return Dim::Unknown();
  }
  Dim quotient = a;
  quotient.coefficient_ /= b.coefficient_;
  quotient.batch_power_ -= b.batch_power_;
  quotient.sequence_power_ -= b.sequence_power_;
  return quotient;
}

bool operator==(const Dim& a, const Dim& b) {
  return a.known_ && b.known_ && a.coefficient_ == b.coefficient_ &&
         a.batch_power_ == b.batch_power_ && a.sequence_power_ == b.sequence_power_;
}

std::string ToString(const Dim& dim) {
  if (!dim.known_) return "?";
  std::string text;
  if (dim.coefficient_ != 1 || (dim.batch_power_ == 0 && dim.sequence_power_ == 0)) {
    text = std::to_string(dim.coefficient_);
  }
  for (int i = 0; i < dim.batch_power_; ++i) text += text.empty() ? "batch" : "*batch";
  for (int i = 0; i < dim.sequence_power_; ++i) text += text.empty() ? "sequence" : "*sequence";
  return text;
}

std::string ToString(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? "," : "") + ToString(shape[i]);
  return text + "]";
}

bool IsConcrete(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](const Dim& d) { return d.IsConstant(); });
}

bool IsKnown(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](const Dim& d) { return d.IsKnown(); });
}

Dims ToDims(const Shape& shape) {
  Dims dims;
  for (const Dim& dim : shape) dims.push_back(dim.Constant());
  return dims;
}

Shape ToShape(const Dims& dims) { return Shape(dims.begin(), dims.end()); }

Dim Product(const Shape& shape) {
  Dim product = 1;
  for (const Dim& dim : shape) product = product * dim;
  return product;
}

bool Same(const Shape& a, const Shape& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

std::optional<Shape> Broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const Dim x = i < a.size() ? a[a.size() - 1 - i] : Dim(1);
    const Dim y = i < b.size() ? b[b.size() - 1 - i] : Dim(1);
    Dim& dim = out[out.size() - 1 - i];
    const bool equal = x == y || y == Dim(1);
    if (!equal && !(x == Dim(1)) && x.IsConstant() && y.IsConstant()) return std::nullopt;
    // A symbolic dim against a constant larger than 1 must equal it at launch.
    const bool take_x = equal || (x.IsConstant() && !(x == Dim(1)));
    const bool take_y = x == Dim(1) || y.IsConstant();
    dim = take_x ? x : take_y ? y : Dim::Unknown();
  }
  return out;
}

Dims BroadcastDims(const Dims& a, const Dims& b) {
  const auto shape = Broadcast(ToShape(a), ToShape(b));
  WEIR_CHECK(shape.has_value(), ErrorCode::kInvalidShape, "shapes ", ToString(a), " and ",
             ToString(b), " do not broadcast");
  return ToDims(*shape);
}

}  // namespace weir
