#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "graph/graph.h"

namespace weir {

using ExprId = int32_t;
inline constexpr ExprId kNoExpr = -1;

// One term over whole rows: what a fiber of a traced tensor holds. Structurally equal terms share
// an id, so comparing ids compares meanings.
struct Expr {
  enum class Op : uint8_t {
    kNumber,   // the same number in every element
    kRow,      // row `index` of an activation
    kScalar,   // element `index` of an activation
    kTensor,   // a constant tensor, or its slice `index` along `axis`; `transposed` swaps the rest
    kProduct,  // matrix operands[0] times vector operands[1]
    kSlice,    // elements start, start + step, ... (count) of operands[0]
    kClamp,    // min(max(operands[0], low), high)
    kSum,      // of operands
    kMul,      // of operands, elementwise
    kUnary,    // function `name` of operands[0]
  };
  Op op = Op::kNumber;
  std::vector<ExprId> operands = {};
  Value* value = nullptr;
  int axis = -1;
  int64_t index = -1;
  bool transposed = false;
  int64_t start = 0, step = 1, count = 0;
  double number = 0;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  std::string name = {};

  auto Key() const {
    return std::tie(op, operands, value, axis, index, transposed, start, step, count, number, low,
                    high, name);
  }
  friend bool operator<(const Expr& a, const Expr& b) { return a.Key() < b.Key(); }
};

// Owns the terms of one trace. Constructors simplify only what is exact for finite values: x+0,
// x*1, x*0, nested sums, products and clamps, scalars moved out of matrix products.
class ExprPool {
 public:
  const Expr& operator[](ExprId id) const { return *exprs_[static_cast<size_t>(id)]; }

  ExprId Number(double value);
  ExprId Row(Value* value, int64_t index);
  ExprId Scalar(Value* value, int64_t index);
  ExprId Tensor(Value* value, int axis, int64_t index);
  ExprId Transposed(ExprId tensor);
  ExprId Product(ExprId matrix, ExprId vector);
  ExprId Slice(ExprId vector, int64_t start, int64_t step, int64_t count);
  ExprId Clamp(ExprId x, double low, double high);
  ExprId Sum(const std::vector<ExprId>& terms);
  ExprId Mul(const std::vector<ExprId>& factors);
  ExprId Unary(std::string name, ExprId x);

  bool IsNumber(ExprId id, double value) const;
  bool IsScalar(ExprId id) const;  // one number per row, as opposed to a vector
  // Operands of a sum (or product), or the term alone.
  std::vector<ExprId> Terms(ExprId id) const;
  std::vector<ExprId> Factors(ExprId id) const;
  // Whether an expert's product occurs in the term: with an entry of a stack, or of another
  // product. The gate's own product is neither.
  bool HasExpert(ExprId id) const { return HasProduct(id, 2); }

 private:
  bool HasProduct(ExprId id, int depth) const;
  ExprId Intern(Expr expr);
  std::map<Expr, ExprId> ids_;
  std::vector<const Expr*> exprs_;
};

}  // namespace weir
