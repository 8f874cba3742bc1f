#include "graph_passes/experts_formula.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"

namespace weir {
namespace {

using Op = Expr::Op;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool Near(double a, double b) { return std::abs(a - b) <= 1e-5 * std::abs(b); }

class Reader {
 public:
  Reader(const ExprPool& pool, std::string& why) : pool_(pool), why_(why) {}

  std::optional<RouteTerm> Read(ExprId term) {
    std::vector<ExprId> vectors;
    for (ExprId factor : pool_.Factors(term)) {
      if (pool_[factor].op == Op::kNumber) {
        route_.scale *= pool_[factor].number;
      } else if (!pool_.IsScalar(factor)) {
        vectors.push_back(factor);
      } else if (route_.weight != kNoExpr) {
        return Fail("a route has two weights");
      } else {
        route_.weight = factor;
      }
    }
    if (route_.weight == kNoExpr || vectors.size() != 1)
      return Fail("a route is not weight * expert");
    ExprId hidden = kNoExpr;
    if (!ReadMatrix(vectors[0], route_.down, hidden))
      return Fail("the expert does not end in a down projection");
    if (!ReadActivation(pool_.Factors(hidden))) return std::nullopt;
    return route_;
  }

 private:
  std::optional<RouteTerm> Fail(std::string why) {
    why_ = std::move(why);
    return std::nullopt;
  }
  bool Refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }

  // matrix * input (+ bias), bias a constant row.
  bool ReadMatrix(ExprId id, ExpertMatrix& out, ExprId& input) const {
    const std::vector<ExprId> terms = pool_.Terms(id);
    if (terms.size() > 2) return false;
    for (ExprId term : terms) {
      const Expr& expr = pool_[term];
      if (expr.op == Op::kProduct && out.matrix == kNoExpr &&
          pool_[expr.operands[0]].op == Op::kTensor) {
        out.matrix = expr.operands[0];
        input = expr.operands[1];
      } else if (expr.op == Op::kTensor && out.bias == kNoExpr) {
        out.bias = term;
      } else {
        return false;
      }
    }
    return out.matrix != kNoExpr;
  }

  // The two linear halves, once activation and clamps are off.
  bool ReadHalves(ExprId gate, ExprId up) {
    const Expr &g = pool_[gate], &u = pool_[up];
    ExprId x = kNoExpr, up_x = kNoExpr;
    if (g.op == Op::kSlice && u.op == Op::kSlice) {
      if (g.operands[0] != u.operands[0])
        return Refuse("gate and up are cut from different products");
      if (!ReadMatrix(g.operands[0], route_.gate, x))
        return Refuse("gate and up are no projection of the token");
      if (g.count != u.count || g.step != u.step) return Refuse("gate and up have unequal widths");
      route_.up = route_.gate;
      route_.width = g.count;
      if (g.step == 1 && g.start == 0 && u.start == g.count) {
        route_.halves = RouteTerm::Halves::kConcatenated;
      } else if (g.step == 2 && g.start == 0 && u.start == 1) {
        route_.halves = RouteTerm::Halves::kInterleaved;
      } else {
        return Refuse(StrCat("the gate is cut at ", g.start, " step ", g.step, " and up at ",
                             u.start, " step ", u.step,
                             "; known are gate first, or gate and up by turns"));
      }
    } else {
      if (!ReadMatrix(gate, route_.gate, x) || !ReadMatrix(up, route_.up, up_x)) {
        return Refuse("gate and up are no projections of the token");
      }
      if (x != up_x) return Refuse("gate and up read different rows");
    }
    if (pool_[x].op != Op::kRow) return Refuse("the experts' input is no row of an activation");
    route_.x = x;
    return true;
  }

  // `id` without an upper clamp: (inner, limit).
  std::pair<ExprId, double> Capped(ExprId id) const {
    const Expr& expr = pool_[id];
    if (expr.op != Op::kClamp || expr.low != -kInfinity) return {id, kInfinity};
    return {expr.operands[0], expr.high};
  }

  bool ReadActivation(std::vector<ExprId> factors) {
    double constant = 1;
    std::vector<ExprId> rest;
    for (ExprId factor : factors) {
      if (pool_[factor].op == Op::kNumber) {
        constant *= pool_[factor].number;
      } else {
        rest.push_back(factor);
      }
    }
    for (size_t i = 0; i < rest.size(); ++i) {
      std::vector<ExprId> others = rest;
      others.erase(others.begin() + static_cast<int64_t>(i));
      const Expr& expr = pool_[rest[i]];
      if (expr.op == Op::kUnary && expr.name == "Sigmoid" && constant == 1)
        return ReadSwiglu(expr.operands[0], others);
      if (expr.op == Op::kUnary && constant == 1 && others.size() == 1) {
        for (const auto& [name, ours] :
             {std::pair{"Relu", "relu"}, {"Gelu", "gelu"}, {"GeluTanh", "gelu_tanh"}}) {
          if (expr.name != name) continue;
          route_.activation = ours;
          return ReadHalves(expr.operands[0], others[0]);
        }
      }
      if (expr.op == Op::kSum && constant == 0.5 && others.size() == 2 && ReadGelu(expr, others))
        return true;
    }
    return Refuse(
        "the activation between the projections is none of silu, swiglu, gelu, relu times up");
  }

  // factors: sigmoid(alpha g), g, u.
  bool ReadSwiglu(ExprId inside, std::vector<ExprId> others) {
    ExprId gate = kNoExpr;
    for (ExprId factor : pool_.Factors(inside)) {
      if (pool_[factor].op == Op::kNumber) {
        route_.alpha = pool_[factor].number;
      } else if (gate == kNoExpr) {
        gate = factor;
      } else {
        return Refuse("the sigmoid's input is a product");
      }
    }
    const auto at = std::find(others.begin(), others.end(), gate);
    if (at == others.end() || others.size() != 2)
      return Refuse("the activation is no swish of the gate times up");
    others.erase(at);
    ExprId up = others[0];
    if (const std::vector<ExprId> terms = pool_.Terms(up); terms.size() == 2) {
      const size_t number = pool_[terms[0]].op == Op::kNumber ? 0 : 1;
      if (pool_[terms[number]].op == Op::kNumber) {
        route_.beta = pool_[terms[number]].number;
        up = terms[1 - number];
      }
    }
    const auto [plain_gate, limit] = Capped(gate);
    if (limit != kInfinity) {
      const Expr& clamp = pool_[up];
      if (clamp.op != Op::kClamp || clamp.high != limit || clamp.low != -limit) {
        return Refuse(
            StrCat("the gate is capped at ", limit, " but up is not clamped to the same limit"));
      }
      route_.limit = limit;
      up = clamp.operands[0];
    }
    return ReadHalves(plain_gate, up);
  }

  // 0.5 * g * (1 + erf(g / sqrt 2)) or 0.5 * g * (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))).
  bool ReadGelu(const Expr& sum, const std::vector<ExprId>& others) {
    if (sum.operands.size() != 2) return false;
    const size_t one = pool_.IsNumber(sum.operands[0], 1) ? 0 : 1;
    const Expr& curve = pool_[sum.operands[1 - one]];
    if (!pool_.IsNumber(sum.operands[one], 1) || curve.op != Op::kUnary) return false;
    for (size_t i = 0; i < 2; ++i) {
      const ExprId gate = others[i];
      const bool erf = curve.name == "Erf" && IsScaled(curve.operands[0], gate, std::sqrt(0.5));
      if (erf || (curve.name == "Tanh" && IsTanhInside(curve.operands[0], gate))) {
        route_.activation = erf ? "gelu" : "gelu_tanh";
        return ReadHalves(gate, others[1 - i]);
      }
    }
    return false;
  }

  bool IsScaled(ExprId id, ExprId inner, double factor) const {
    std::vector<ExprId> factors = pool_.Factors(id);
    double number = 1;
    std::erase_if(factors, [&](ExprId f) {
      if (pool_[f].op != Op::kNumber) return false;
      number *= pool_[f].number;
      return true;
    });
    return factors == pool_.Factors(inner) && Near(number, factor);
  }

  bool IsTanhInside(ExprId id, ExprId gate) const {
    std::vector<ExprId> factors = pool_.Factors(id);
    if (factors.size() != 2) return false;
    const size_t number = pool_[factors[0]].op == Op::kNumber ? 0 : 1;
    const Expr& sum = pool_[factors[1 - number]];
    if (!Near(pool_[factors[number]].number, std::sqrt(2 / M_PI)) || sum.op != Op::kSum ||
        sum.operands.size() != 2) {
      return false;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (sum.operands[i] != gate) continue;
      std::vector<ExprId> cube = pool_.Factors(sum.operands[1 - i]);
      const auto coefficient = std::find_if(cube.begin(), cube.end(), [&](ExprId f) {
        return pool_[f].op == Op::kNumber && Near(pool_[f].number, 0.044715);
      });
      if (coefficient == cube.end()) continue;
      cube.erase(coefficient);
      if (cube == std::vector<ExprId>{gate, gate, gate}) return true;
    }
    return false;
  }

  const ExprPool& pool_;
  std::string& why_;
  RouteTerm route_;
};

}  // namespace

std::optional<RouteTerm> ReadRoute(const ExprPool& pool, ExprId term, std::string& why) {
  return Reader(pool, why).Read(term);
}

}  // namespace weir
