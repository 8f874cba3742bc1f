#pragma once
#include "graph/eval.h"
#include "kernels/common/integer_inputs.h"
#include "kernels/experts/activation.h"

namespace weir {

// The inputs that the forward op and its gradient share, by name.
template <class T>
struct ExpertsView {
  const Array<T>&x, &ids, &weights, &gate_up, &down;
  const Array<T>*gate_up_bias, *down_bias;
  int64_t n, k, e, h, i;

  explicit ExpertsView(const Eval<T>& eval)
      : x(eval.floats(0)),
        ids(Integers(eval, 1)),
        weights(eval.floats(2)),
        gate_up(eval.floats(3)),
        down(eval.floats(4)),
        gate_up_bias(eval.has(5) ? &eval.floats(5) : nullptr),
        down_bias(eval.has(6) ? &eval.floats(6) : nullptr),
        n(x.dims[0]),
        k(ids.dims[1]),
        e(gate_up.dims[0]),
        h(x.dims[1]),
        i(down.dims[2]) {}

  int64_t Expert(int64_t route) const {
    const int64_t id = ids.i[route];
    WEIR_CHECK(id >= 0 && id < e, ErrorCode::kInvalidArgument, "Experts: expert id ", id,
               " at token ", route / k, " slot ", route % k, " is outside [0,", e, ")");
    return id;
  }
  // Rows [0, 2i) of gate_up[expert] x_token + bias.
  std::vector<T> GateUp(int64_t token, int64_t expert) const {
    std::vector<T> out(2 * i);
    for (int64_t r = 0; r < 2 * i; ++r) {
      for (int64_t c = 0; c < h; ++c) {
        out[r] += gate_up.f[(expert * 2 * i + r) * h + c] * x.f[token * h + c];
      }
      if (gate_up_bias != nullptr) out[r] += gate_up_bias->f[expert * 2 * i + r];
    }
    return out;
  }
  std::vector<T> Down(const std::vector<T>& a, int64_t expert) const {
    std::vector<T> out(h);
    for (int64_t c = 0; c < h; ++c) {
      for (int64_t r = 0; r < i; ++r) out[c] += down.f[(expert * h + c) * i + r] * a[r];
      if (down_bias != nullptr) out[c] += down_bias->f[expert * h + c];
    }
    return out;
  }
  std::vector<T> Activated(const ExpertActivation& act, const std::vector<T>& gate_up_row) const {
    std::vector<T> a(i);
    for (int64_t r = 0; r < i; ++r) a[r] = GatedForward(act, gate_up_row[r], gate_up_row[i + r]);
    return a;
  }
};

template <class T>
void ExpertsReference(Eval<T>& e) {
  const ExpertsView<T> v(e);
  const ExpertActivation act(e.attributes);
  Array<T> y = Array<T>::Floats(v.x.dims);
  for (int64_t route = 0; route < v.n * v.k; ++route) {
    const int64_t token = route / v.k, expert = v.Expert(route);
    const std::vector<T> row = v.Down(v.Activated(act, v.GateUp(token, expert)), expert);
    for (int64_t c = 0; c < v.h; ++c) y.f[token * v.h + c] += v.weights.f[route] * row[c];
  }
  e.out[0] = std::move(y);
}

template <class T>
void ExpertsGradientReference(Eval<T>& e) {
  const ExpertsView<T> v(e);
  const ExpertActivation act(e.attributes);
  const Array<T>& dy = e.floats(7);
  const size_t outputs = e.out.size();
  e.out.resize(6);
  const auto start = [&](size_t acc, const Dims& dims) {
    return e.has(acc) ? e.floats(acc) : Array<T>::Floats(dims);
  };
  Array<T> dx = Array<T>::Floats(v.x.dims), dweights = Array<T>::Floats(v.weights.dims);
  Array<T> dgate_up = start(8, v.gate_up.dims), ddown = start(9, v.down.dims);
  Array<T> dgate_up_bias = start(10, {v.e, 2 * v.i}), ddown_bias = start(11, {v.e, v.h});
  for (int64_t route = 0; route < v.n * v.k; ++route) {
    const int64_t token = route / v.k, expert = v.Expert(route);
    const std::vector<T> gate_up = v.GateUp(token, expert), a = v.Activated(act, gate_up);
    const std::vector<T> row = v.Down(a, expert);
    std::vector<T> da(v.i);
    for (int64_t c = 0; c < v.h; ++c) {
      const T g = dy.f[token * v.h + c];
      dweights.f[route] += g * row[c];
      const T dout = v.weights.f[route] * g;
      ddown_bias.f[expert * v.h + c] += dout;
      for (int64_t r = 0; r < v.i; ++r) {
        ddown.f[(expert * v.h + c) * v.i + r] += dout * a[r];
        da[r] += dout * v.down.f[(expert * v.h + c) * v.i + r];
      }
    }
    for (int64_t r = 0; r < v.i; ++r) {
      const auto [dg, du] = GatedBackward(act, gate_up[r], gate_up[v.i + r], da[r]);
      for (const auto& [at, d] : {std::pair{r, dg}, std::pair{v.i + r, du}}) {
        dgate_up_bias.f[expert * 2 * v.i + at] += d;
        for (int64_t c = 0; c < v.h; ++c) {
          const int64_t weight = (expert * 2 * v.i + at) * v.h + c;
          dgate_up.f[weight] += d * v.x.f[token * v.h + c];
          dx.f[token * v.h + c] += d * v.gate_up.f[weight];
        }
      }
    }
  }
  e.out[0] = std::move(dx);
  e.out[1] = std::move(dweights);
  e.out[2] = std::move(dgate_up);
  e.out[3] = std::move(ddown);
  e.out[4] = std::move(dgate_up_bias);
  e.out[5] = std::move(ddown_bias);
  e.out.resize(outputs);
}

}  // namespace weir
