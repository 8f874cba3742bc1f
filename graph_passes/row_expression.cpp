#include "graph_passes/row_expression.h"

#include <algorithm>

namespace weir {

ExprId ExprPool::Intern(Expr expr) {
  const auto [it, added] = ids_.emplace(std::move(expr), static_cast<ExprId>(exprs_.size()));
  if (added) exprs_.push_back(&it->first);
  return it->second;
}

ExprId ExprPool::Number(double value) { return Intern({.op = Expr::Op::kNumber, .number = value}); }

ExprId ExprPool::Row(Value* value, int64_t index) {
  return Intern({.op = Expr::Op::kRow, .value = value, .index = index});
}

ExprId ExprPool::Scalar(Value* value, int64_t index) {
  return Intern({.op = Expr::Op::kScalar, .value = value, .index = index});
}

ExprId ExprPool::Tensor(Value* value, int axis, int64_t index) {
  return Intern({.op = Expr::Op::kTensor, .value = value, .axis = axis, .index = index});
}

ExprId ExprPool::Transposed(ExprId tensor) {
  Expr expr = (*this)[tensor];
  if (expr.op != Expr::Op::kTensor) return kNoExpr;
  expr.transposed = !expr.transposed;
  return Intern(std::move(expr));
}

ExprId ExprPool::Product(ExprId matrix, ExprId vector) {
  if (IsNumber(vector, 0)) return vector;
  std::vector<ExprId> scalars, rest;
  for (ExprId factor : Factors(vector)) {
    const bool weight = IsScalar(factor) && (*this)[factor].op != Expr::Op::kNumber;
    (weight ? scalars : rest).push_back(factor);
  }
  scalars.push_back(Intern({.op = Expr::Op::kProduct, .operands = {matrix, Mul(rest)}}));
  return Mul(scalars);
}

ExprId ExprPool::Slice(ExprId vector, int64_t start, int64_t step, int64_t count) {
  if ((*this)[vector].op == Expr::Op::kNumber) return vector;
  if (const Expr& inner = (*this)[vector]; inner.op == Expr::Op::kSlice) {
    start = inner.start + start * inner.step;
    step *= inner.step;
    vector = inner.operands[0];
  }
  return Intern(
      {.op = Expr::Op::kSlice, .operands = {vector}, .start = start, .step = step, .count = count});
}

ExprId ExprPool::Clamp(ExprId x, double low, double high) {
  const Expr inner = (*this)[x];
  if (inner.op == Expr::Op::kNumber) return Number(std::min(std::max(inner.number, low), high));
  if (inner.op == Expr::Op::kClamp) {
    low = std::max(low, inner.low);
    high = std::min(high, inner.high);
    x = inner.operands[0];
  }
  return Intern({.op = Expr::Op::kClamp, .operands = {x}, .low = low, .high = high});
}

ExprId ExprPool::Sum(const std::vector<ExprId>& terms) {
  std::vector<ExprId> operands;
  double number = 0;
  for (ExprId term : terms) {
    for (ExprId part : Terms(term)) {
      if ((*this)[part].op == Expr::Op::kNumber) {
        number += (*this)[part].number;
      } else {
        operands.push_back(part);
      }
    }
  }
  if (operands.empty()) return Number(number);
  if (number != 0) operands.push_back(Number(number));
  if (operands.size() == 1) return operands[0];
  std::sort(operands.begin(), operands.end());
  return Intern({.op = Expr::Op::kSum, .operands = std::move(operands)});
}

ExprId ExprPool::Mul(const std::vector<ExprId>& factors) {
  std::vector<ExprId> operands;
  double number = 1;
  for (ExprId factor : factors) {
    for (ExprId part : Factors(factor)) {
      if ((*this)[part].op == Expr::Op::kNumber) {
        number *= (*this)[part].number;
      } else {
        operands.push_back(part);
      }
    }
  }
  if (number == 0 || operands.empty()) return Number(number);
  if (number != 1) operands.push_back(Number(number));
  if (operands.size() == 1) return operands[0];
  std::sort(operands.begin(), operands.end());
  return Intern({.op = Expr::Op::kMul, .operands = std::move(operands)});
}

ExprId ExprPool::Unary(std::string name, ExprId x) {
  return Intern({.op = Expr::Op::kUnary, .operands = {x}, .name = std::move(name)});
}

bool ExprPool::IsNumber(ExprId id, double value) const {
  return (*this)[id].op == Expr::Op::kNumber && (*this)[id].number == value;
}

bool ExprPool::IsScalar(ExprId id) const {
  const Expr& expr = (*this)[id];
  switch (expr.op) {
    case Expr::Op::kNumber:
    case Expr::Op::kScalar:
      return true;
    case Expr::Op::kSum:
    case Expr::Op::kMul:
    case Expr::Op::kClamp:
    case Expr::Op::kUnary:
      return std::all_of(expr.operands.begin(), expr.operands.end(),
                         [this](ExprId operand) { return IsScalar(operand); });
    default:
      return false;
  }
}

std::vector<ExprId> ExprPool::Terms(ExprId id) const {
  const Expr& expr = (*this)[id];
  return expr.op == Expr::Op::kSum ? expr.operands : std::vector<ExprId>{id};
}

std::vector<ExprId> ExprPool::Factors(ExprId id) const {
  const Expr& expr = (*this)[id];
  return expr.op == Expr::Op::kMul ? expr.operands : std::vector<ExprId>{id};
}

bool ExprPool::HasProduct(ExprId id, int depth) const {
  const Expr& expr = (*this)[id];
  if (expr.op == Expr::Op::kProduct && ((*this)[expr.operands[0]].axis >= 0 || --depth == 0))
    return true;
  return std::any_of(expr.operands.begin(), expr.operands.end(),
                     [this, depth](ExprId operand) { return HasProduct(operand, depth); });
}

}  // namespace weir
