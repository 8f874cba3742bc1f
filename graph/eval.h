#pragma once
#include <complex>
#include <cstdint>
#include <vector>

#include "graph/attributes.h"
#include "graph/error.h"

namespace weir {

// A dense row-major tensor in a reference evaluation: floats in `f`, integers and bools (0/1) in `i`.
template <class T>
struct Array {
  DType dtype = DType::kFloat32;
  Dims dims;
  std::vector<T> f;
  std::vector<int64_t> i;

  int64_t elements() const { return NumElements(dims); }
  bool is_float() const { return IsFloat(dtype); }
  static Array Floats(Dims dims, T fill = T{}) {
    Array a;
    a.dims = std::move(dims);
    a.f.assign(static_cast<size_t>(a.elements()), fill);
    return a;
  }
  static Array Ints(Dims dims, DType dtype = DType::kInt64, int64_t fill = 0) {
    Array a;
    a.dtype = dtype;
    a.dims = std::move(dims);
    a.i.assign(static_cast<size_t>(a.elements()), fill);
    return a;
  }
};

// One reference evaluation. The reference reads `in` (nullptr = absent optional input) and assigns
// `out` (already sized to the node's output count), dims and dtype included.
template <class T>
struct Eval {
  const Attributes& attributes;
  std::vector<const Array<T>*> in;
  std::vector<Array<T>> out;

  bool has(size_t k) const { return k < in.size() && in[k] != nullptr; }
  const Array<T>& x(size_t k) const {
    WEIR_CHECK(has(k), ErrorCode::kInvalidModel, "required input ", k, " is missing");
    return *in[k];
  }

  // Input k of an op that computes on floats only; an integer tensor there is the file's mistake.
  const Array<T>& floats(size_t k) const {
    WEIR_CHECK(x(k).is_float(), ErrorCode::kUnsupportedOp, "input ", k, " is ", DTypeName(x(k).dtype),
               "; only floating-point values are supported here");
    return x(k);
  }
};

// Ordering for branches: complex values compare by real part, as the complex step demands.
inline double Real(float x) { return x; }
inline double Real(double x) { return x; }
inline double Real(const std::complex<double>& x) { return x.real(); }

Array<float> ToArray(const TensorData& data);
TensorDataPtr ToTensorData(const Array<float>& array);

}  // namespace weir
