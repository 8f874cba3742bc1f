// A whole canonical mixture-of-experts decoder: loss against the float64 references, every parameter's
// gradient against the complex-step directional derivative of the whole graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <complex>

#include "tests/graph_passes/reference_graph.h"
#include "tests/graph_passes/training_harness.h"

namespace weir {
namespace {

constexpr const char* kDecoder =
    "graph decoder (int64[batch,sequence] input_ids) => (float[batch,sequence,11] logits)\n"
    "parameter float[11,8] embed\nparameter float[8] g1\nparameter float[16,8] wq\nparameter float[8,8] wk\n"
    "parameter float[8,8] wv\nparameter float[4] qn\nparameter float[4] kn\nparameter float[4] sinks\n"
    "parameter float[8,16] wo\nparameter float[8] bo\nparameter float[8] g2\nparameter float[4,8] router\n"
    "parameter float[4,12,8] gate_up\nparameter float[4,8,6] down\nparameter float[4,12] gate_up_bias\n"
    "parameter float[4,8] down_bias\nparameter float[6,8] shared_gate\nparameter float[6,8] shared_up\n"
    "parameter float[8,6] shared_down\nparameter float[8] gf\n"
    "constant int64[4] to_heads = {0, 0, 4, 4}\nconstant int64[4] to_kv = {0, 0, 2, 4}\n"
    "constant int64[3] to_rows = {0, 0, 16}\nconstant int64[2] to_tokens = {-1, 8}\n"
    "constant int64[1] k = {2}\nconstant int64[1] last = {-1}\n"
    "{\n"
    "  h = Embedding(input_ids, embed)\n"
    "  length = Shape<end = 2, start = 1>(input_ids)\n"
    "  cos, sin = RotaryTable<inv_freq = [1.0, 0.01], scale = 1.0>(length)\n"
    "  a = RmsNorm<epsilon = 1e-05>(h, g1)\n"
    "  q0 = Linear(a, wq)\n  q1 = Reshape(q0, to_heads)\n  q2 = RmsNorm(q1, qn)\n  q = Rotary(q2, cos, sin)\n"
    "  k0 = Linear(a, wk)\n  k1 = Reshape(k0, to_kv)\n  k2 = RmsNorm(k1, kn)\n  k3 = Rotary(k2, cos, sin)\n"
    "  v0 = Linear(a, wv)\n  v = Reshape(v0, to_kv)\n"
    "  y = ai.weir::Attention<causal = 1, scale = 0.5, window = 3>(q, k3, v, sinks)\n"
    "  rows = Reshape(y, to_rows)\n  o = Linear(rows, wo, bo)\n  h2 = Add(h, o)\n"
    "  n = RmsNorm(h2, g2)\n  x = Reshape(n, to_tokens)\n"
    "  scores = Linear(x, router)\n  probabilities = Softmax<axis = -1>(scores)\n"
    "  top, ids = TopK<axis = -1>(probabilities, k)\n  total = ReduceSum(top, last)\n  weights = Div(top, total)\n"
    "  e = Experts<activation = \"swiglu\", alpha = 1.5, beta = 1.0, limit = 2.0>"
    "(x, ids, weights, gate_up, down, gate_up_bias, down_bias)\n"
    "  sg = Linear(x, shared_gate)\n  ss = Sigmoid(sg)\n  sm = Mul(sg, ss)\n  su = Linear(x, shared_up)\n"
    "  sp = Mul(sm, su)\n  sd = Linear(sp, shared_down)\n  moe = Add(e, sd)\n"
    "  full = Shape(h)\n  back = Reshape(moe, full)\n  h3 = Add(h2, back)\n  f = RmsNorm(h3, gf)\n  logits = Linear(f, embed)\n"
    "}";

constexpr int64_t kBatch = 2, kSequence = 7;

template <class T>
void Put(Values<T>& values, const TrainingHarness& training, const std::string& name, const std::vector<double>& data) {
  const Value* value = training.graph->FindValue(name);
  Array<T> array;
  array.dims = ToDims(value->shape);
  for (double v : data) array.f.push_back(T(v));
  values[value] = std::move(array);
}

template <class T>
void PutInts(Values<T>& values, const TrainingHarness& training, const std::string& name, const std::vector<int64_t>& data) {
  const Value* value = training.graph->FindValue(name);
  Array<T> array = Array<T>::Ints(ToDims(value->shape));
  array.i = data;
  values[value] = std::move(array);
}

TEST(Decoder, LossAndGradientsMatchTheReferences) {
  TrainingHarness training(kDecoder, kBatch, kSequence);
  std::vector<int64_t> ids, labels;
  for (int64_t i = 0; i < kBatch * kSequence; ++i) {
    ids.push_back(i * 7 % 11);
    labels.push_back(i % 5 == 3 ? -100 : i * 3 % 11);
  }
  const auto valid = static_cast<double>(std::ranges::count_if(labels, [](int64_t l) { return l >= 0; }));
  const double scale = static_cast<float>(1 / valid);
  Parameters parameters;
  uint32_t seed = 1;
  for (const Value* parameter : training.graph->ValuesWithRole(Role::kParameter)) {
    auto values = Draw(static_cast<size_t>(NumElements(ToDims(parameter->shape))), seed++);
    training.Write(parameter->name, ToFloats(values));
    parameters[parameter->name] = std::move(values);
  }
  training.Step(ids, labels, 0, 1);

  using Complex = std::complex<double>;
  constexpr double kStep = 1e-50;
  Values<Complex> values;
  for (const auto& [name, data] : parameters) Put(values, training, name, data);
  Put<Complex>(values, training, "loss_scale", {scale});
  PutInts(values, training, "input_ids", ids);
  PutInts(values, training, "labels", labels);
  const Value* loss = training.graph->FindValue("loss");
  for (const auto& [name, data] : parameters) {
    const auto gradient = training.Read<float>(name + ".grad");
    Array<Complex>& perturbed = values.at(training.graph->FindValue(name));
    double largest = 0;
    for (float g : gradient) largest = std::max(largest, static_cast<double>(std::abs(g)));
    EXPECT_GT(largest, 1e-4) << name << " gets no gradient";
    for (uint32_t direction = 0; direction < 4; ++direction) {
      const auto v = Draw(data.size(), 100 * seed + direction);
      double got = 0, square = 0;
      for (size_t i = 0; i < v.size(); ++i) {
        perturbed.f[i] = Complex(data[i], kStep * v[i]);
        got += gradient[i] * v[i];
        square += gradient[i] * gradient[i] * v[i] * v[i];
      }
      EvaluateForward(*training.graph, values);
      const double expected = values.at(loss).f[0].imag() / kStep;
      // Float32 rounding through some 40 nodes: 64 eps of the root-sum-square of the terms, and of 1e-2,
      // the size of the gradients that flow on the way.
      EXPECT_NEAR(got, expected, 64 * 1.2e-7 * (std::sqrt(square) + 1e-2)) << name << " direction " << direction;
    }
    for (size_t i = 0; i < data.size(); ++i) perturbed.f[i] = data[i];
  }
  EvaluateForward(*training.graph, values);
  EXPECT_NEAR(training.loss(), values.at(loss).f[0].real(), 1e-5);
  EXPECT_EQ(UnreadBuffers(training.plan), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
