#pragma once
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "graph_passes/row_expression.h"

namespace weir {

// One linear map of one expert: a constant matrix (or one of a stack), bias added or not.
struct ExpertMatrix {
  ExprId matrix = kNoExpr;  // Expr::kTensor, as applied: rows are output features
  ExprId bias = kNoExpr;    // Expr::kTensor
};

// weight * (down(act(gate x) * up x)): what one route adds to its token.
struct RouteTerm {
  ExprId weight = kNoExpr;  // a scalar term
  double scale = 1;         // constant factor of the weight
  ExprId x = kNoExpr;
  ExpertMatrix gate, up, down;  // gate == up when one matrix makes both
  enum class Halves { kSeparate, kConcatenated, kInterleaved } halves = Halves::kSeparate;
  int64_t width = 0;  // I, when one matrix makes both
  std::string activation = "swiglu";
  double alpha = 1, beta = 0, limit = std::numeric_limits<double>::infinity();
};

// Reads a term; nullopt with the reason in `why` when it is no route of a gated expert.
std::optional<RouteTerm> ReadRoute(const ExprPool& pool, ExprId term, std::string& why);

}  // namespace weir
