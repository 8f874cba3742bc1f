#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weir {

// Concrete sizes, row-major, dense.
using Dims = std::vector<int64_t>;

// Product with overflow check; throws InvalidShape on a negative dim or a product >= 2^60.
int64_t NumElements(const Dims& dims);
std::string ToString(const Dims& dims);  // "[2,17,64]"

inline int64_t DivCeil(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A dimension that may depend on the launch: coefficient * batch^i * sequence^j, or unknown.
// Unknown dims are never equal to anything, themselves included.
class Dim {
 public:
  Dim() = default;  // unknown
  Dim(int64_t value) : known_(true), coefficient_(value) {}  // NOLINT: implicit on purpose
  static Dim Unknown() { return Dim(); }
  static Dim Batch() { return Symbol(1, 0); }
  static Dim Sequence() { return Symbol(0, 1); }

  bool IsKnown() const { return known_; }  // constant or symbolic
  bool IsConstant() const { return known_ && batch_power_ == 0 && sequence_power_ == 0; }
  int64_t Constant() const;  // throws Internal unless IsConstant()

  // Value at a launch shape; throws Internal when unknown.
  int64_t Evaluate(int64_t batch, int64_t sequence) const;

  friend Dim operator*(const Dim& a, const Dim& b);
  friend Dim operator+(const Dim& a, const Dim& b);  // unknown unless like terms
  friend Dim operator-(const Dim& a, const Dim& b);
  // Exact quotient, unknown when it does not divide symbolically.
  friend Dim DivExact(const Dim& a, const Dim& b);
  friend bool operator==(const Dim& a, const Dim& b);

 private:
  static Dim Symbol(int batch_power, int sequence_power);
  friend std::string ToString(const Dim& dim);
  bool known_ = false;
  int64_t coefficient_ = 0;
  int batch_power_ = 0, sequence_power_ = 0;
};

using Shape = std::vector<Dim>;  // may be symbolic

std::string ToString(const Dim& dim);      // "64", "batch", "2*batch*sequence", "?"
std::string ToString(const Shape& shape);  // "[batch,sequence,64]"
bool IsConcrete(const Shape& shape);
bool IsKnown(const Shape& shape);
Dims ToDims(const Shape& shape);  // throws Internal unless concrete
Shape ToShape(const Dims& dims);
Dim Product(const Shape& shape);
bool Same(const Shape& a, const Shape& b);  // equal rank and every dim known and equal

// NumPy broadcasting; nullopt when the shapes are provably incompatible.
std::optional<Shape> Broadcast(const Shape& a, const Shape& b);
Dims BroadcastDims(const Dims& a, const Dims& b);  // throws InvalidShape

}  // namespace weir
