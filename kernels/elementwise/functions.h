#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <numbers>

#include "graph/eval.h"

namespace weir {

// Scalar functions behind the elementwise ops, one per op, built from its attributes. operator()(T)
// is the function on float, double and complex<double>; Int its integer form; Slope its derivative.
// Functions that are not holomorphic branch on real parts or are lifted: f(x + ih) = f(x) + i h
// f'(x).

template <class T>
T Lift(const T&, double value, double) {
  return static_cast<T>(value);
}
inline std::complex<double> Lift(const std::complex<double>& x, double value, double slope) {
  return {value, x.imag() * slope};
}

// Stable for any sign: never exponentiates a positive number.
template <class T>
T SigmoidOf(const T& x) {
  if (Real(x) >= 0) return T(1) / (T(1) + std::exp(-x));
  const T e = std::exp(x);
  return e / (T(1) + e);
}
template <class T>
T ErfOf(const T& x) {
  const double r = Real(x);
  return Lift(x, std::erf(r), 2 * std::numbers::inv_sqrtpi * std::exp(-r * r));
}

// A function without attributes.
#define WEIR_FUNCTION(Name, value, slope)         \
  struct Name##Function {                         \
    explicit Name##Function(const Attributes&) {} \
    template <class T>                            \
    T operator()(const T& x) const {              \
      return value;                               \
    }                                             \
    template <class T>                            \
    T Slope([[maybe_unused]] const T& x) const {  \
      return slope;                               \
    }                                             \
  };
WEIR_FUNCTION(Exp, std::exp(x), std::exp(x))
WEIR_FUNCTION(Log, std::log(x), T(1) / x)
WEIR_FUNCTION(Sqrt, std::sqrt(x), T(0.5) / std::sqrt(x))
WEIR_FUNCTION(Reciprocal, T(1) / x, T(-1) / (x * x))
WEIR_FUNCTION(Sin, std::sin(x), std::cos(x))
WEIR_FUNCTION(Cos, std::cos(x), -std::sin(x))
WEIR_FUNCTION(Tanh, std::tanh(x), (T(1) - std::tanh(x)) * (T(1) + std::tanh(x)))
WEIR_FUNCTION(Sigmoid, SigmoidOf(x), SigmoidOf(x) * SigmoidOf(T(-x)))
WEIR_FUNCTION(Erf, ErfOf(x), T(2 * std::numbers::inv_sqrtpi) * std::exp(-x * x))
WEIR_FUNCTION(Softplus,
              Real(x) > 0 ? x + std::log(T(1) + std::exp(-x)) : std::log(T(1) + std::exp(x)),
              SigmoidOf(x))
WEIR_FUNCTION(Floor, Lift(x, std::floor(Real(x)), 0), T(0))
WEIR_FUNCTION(Ceil, Lift(x, std::ceil(Real(x)), 0), T(0))
WEIR_FUNCTION(Round, Lift(x, std::nearbyint(Real(x)), 0), T(0))  // halves to even
#undef WEIR_FUNCTION

// As WEIR_FUNCTION, for ops that also take integers.
#define WEIR_SIGNED_FUNCTION(Name, value, slope, integer) \
  struct Name##Function {                                 \
    explicit Name##Function(const Attributes&) {}         \
    template <class T>                                    \
    T operator()(const T& x) const {                      \
      return value;                                       \
    }                                                     \
    template <class T>                                    \
    T Slope(const T& x) const {                           \
      return slope;                                       \
    }                                                     \
    int64_t Int(int64_t x) const { return integer; }      \
  };
inline int64_t WrapNeg(int64_t x) { return static_cast<int64_t>(0 - static_cast<uint64_t>(x)); }
WEIR_SIGNED_FUNCTION(Neg, -x, (static_cast<void>(x), T(-1)), WrapNeg(x))
WEIR_SIGNED_FUNCTION(Abs, Real(x) < 0 ? -x : x, T((Real(x) > 0) - (Real(x) < 0)),
                     x < 0 ? WrapNeg(x) : x)
WEIR_SIGNED_FUNCTION(Sign,
                     Lift(x, std::isnan(Real(x)) ? Real(x) : (Real(x) > 0) - (Real(x) < 0), 0),
                     (static_cast<void>(x), T(0)), (x > 0) - (x < 0))
WEIR_SIGNED_FUNCTION(Relu, Real(x) < 0 ? T(0) : x, T(Real(x) > 0), x < 0 ? 0 : x)
#undef WEIR_SIGNED_FUNCTION

struct LeakyReluFunction {
  explicit LeakyReluFunction(const Attributes& a) : alpha(a.Float("alpha", 0.01f)) {}
  double alpha;
  template <class T>
  T operator()(const T& x) const {
    return Real(x) < 0 ? T(alpha) * x : x;
  }
  template <class T>
  T Slope(const T& x) const {
    return Real(x) < 0 ? T(alpha) : T(1);
  }
};

// max(0, min(1, alpha * x + beta))
struct HardSigmoidFunction {
  explicit HardSigmoidFunction(const Attributes& a)
      : alpha(a.Float("alpha", 0.2f)), beta(a.Float("beta", 0.5f)) {}
  double alpha, beta;
  template <class T>
  T operator()(const T& x) const {
    const T y = T(alpha) * x + T(beta);
    return Real(y) < 0 ? T(0) : Real(y) > 1 ? T(1) : y;
  }
  template <class T>
  T Slope(const T& x) const {
    const double y = alpha * Real(x) + beta;
    return y > 0 && y < 1 ? T(alpha) : T(0);
  }
};

// x * sigmoid(alpha * x)
struct SwishFunction {
  explicit SwishFunction(const Attributes& a) : alpha(a.Float("alpha", 1)) {}
  double alpha;
  template <class T>
  T operator()(const T& x) const {
    return x * SigmoidOf(T(alpha) * x);
  }
  template <class T>
  T Slope(const T& x) const {
    const T s = SigmoidOf(T(alpha) * x);
    return s + T(alpha) * x * s * SigmoidOf(T(-alpha) * x);
  }
};

// x * Phi(x), or its tanh approximation.
struct GeluFunction {
  explicit GeluFunction(const Attributes& a) {
    const std::string approximate = a.String("approximate", "none");
    WEIR_CHECK(approximate == "none" || approximate == "tanh", ErrorCode::kInvalidModel,
               "Gelu: approximate = '", approximate, "', expected 'none' or 'tanh'");
    tanh = approximate == "tanh";
  }
  bool tanh = false;
  template <class T>
  T operator()(const T& x) const {
    // 1 + tanh(u) = 2 sigmoid(2u) keeps its digits where tanh nears -1; likewise 1 + erf = erfc.
    if (tanh) return x * SigmoidOf(T(2) * Inner(x));
    const double z = Real(x) * std::numbers::sqrt2 / 2;
    return x * Lift(x, std::erfc(-z) / 2, Density(Real(x)));
  }
  template <class T>
  T Slope(const T& x) const {
    if (!tanh) {
      const double r = Real(x);
      return T(std::erfc(-r * std::numbers::sqrt2 / 2) / 2 + r * Density(r));
    }
    const T s = SigmoidOf(T(2) * Inner(x)), t = SigmoidOf(T(-2) * Inner(x));
    return s + x * T(2) * s * t * T(kRoot2OverPi) * (T(1) + T(3 * kCubic) * x * x);
  }

 private:
  static constexpr double kRoot2OverPi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  static constexpr double kCubic = 0.044715;
  static double Density(double x) {
    return std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  }
  template <class T>
  static T Inner(const T& x) {
    return T(kRoot2OverPi) * (x + T(kCubic) * x * x * x);
  }
};

// Two-argument functions; Int for integer tensors (dtype known: results are wrapped by the caller).
struct AddFunction {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a + b;
  }
  int64_t Int(int64_t a, int64_t b) const {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
};
struct SubFunction {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a - b;
  }
  int64_t Int(int64_t a, int64_t b) const {
    return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
  }
};
struct MulFunction {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a * b;
  }
  int64_t Int(int64_t a, int64_t b) const {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
// Integer division truncates towards zero; division by zero is an error.
struct DivFunction {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return a / b;
  }
  int64_t Int(int64_t a, int64_t b) const {
    WEIR_CHECK(b != 0, ErrorCode::kInvalidModel, "Div: integer division of ", a, " by zero");
    return b == -1 ? WrapNeg(a) : a / b;
  }
};
// NaN in either operand gives NaN.
struct MinFunction {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return Real(a) < Real(b) || std::isnan(Real(a)) ? a : b;
  }
  int64_t Int(int64_t a, int64_t b) const { return a < b ? a : b; }
};
struct MaxFunction {
  template <class T>
  T operator()(const T& a, const T& b) const {
    return Real(a) > Real(b) || std::isnan(Real(a)) ? a : b;
  }
  int64_t Int(int64_t a, int64_t b) const { return a > b ? a : b; }
};

}  // namespace weir
