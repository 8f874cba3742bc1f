// Every op x every case: forward against the float64 reference; gradient against the complex-step
// directional derivative of the same reference; the accumulating form against the plain one.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

constexpr double kEps = 1.1920929e-7;  // float32
struct Param {
  const OpSchema* op;
  OpCase op_case;
};
void PrintTo(const Param& param, std::ostream* out) { *out << param.op->name << " " << param.op_case.name; }

std::vector<Param> AllCases(bool gradient) {
  std::vector<Param> all;
  for (const OpSchema* op : AllOps()) {
    if (op->cases == nullptr || op->reference_f64 == nullptr) continue;
    for (OpCase& op_case : op->cases()) {
      if (!gradient || (op->gradient != nullptr && op_case.check_gradient)) all.push_back({op, op_case});
    }
  }
  return all;
}

template <class T>
std::vector<Array<T>> Reference(void (*reference)(Eval<T>&), const OpCase& op_case,
                                const std::vector<Array<T>>& inputs) {
  Eval<T> eval{.attributes = op_case.attributes, .in = {}, .out = {}};
  eval.out.resize(static_cast<size_t>(op_case.outputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    eval.in.push_back(op_case.in[i].kind == CaseInput::Kind::kAbsent ? nullptr : &inputs[i]);
  }
  reference(eval);
  return std::move(eval.out);
}

std::vector<std::pair<Value*, Array<float>>> Feeds(const OpGraph& op,
                                                   const std::vector<Array<double>>& inputs) {
  std::vector<std::pair<Value*, Array<float>>> feeds;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (op.inputs[i] != nullptr) feeds.push_back({op.inputs[i], Convert<float>(inputs[i])});
  }
  return feeds;
}

class OpForward : public testing::TestWithParam<Param> {};
class OpGradient : public testing::TestWithParam<Param> {};

// Tolerance: 32 eps relative to the larger of the element and the output's root mean square. Rounding
// errors of the <= 1000 terms behind one element add in quadrature (about 30 eps of their rms).
TEST_P(OpForward, MatchesFloat64Reference) {
  const auto& [op, op_case] = GetParam();
  const auto inputs = DrawInputs(op_case, 1);
  const auto expected = Reference<double>(op->reference_f64, op_case, inputs);
  const auto graph = MakeOpGraph(*op, op_case, /*gradient=*/false, /*as_parameters=*/false);
  const auto got = RunOnCpu(graph->graph, Feeds(*graph, inputs), graph->node->outputs);
  for (size_t o = 0; o < expected.size(); ++o) {
    ASSERT_EQ(got[o].dims, expected[o].dims) << "output " << o;
    ASSERT_EQ(ToDims(graph->node->out(o)->shape), expected[o].dims) << "infer disagrees, output " << o;
    ASSERT_EQ(got[o].is_float(), expected[o].is_float());
    EXPECT_EQ(got[o].i, expected[o].i) << "output " << o;
    double square = 0;
    for (double v : expected[o].f) square += std::isfinite(v) ? v * v : 0;
    const double rms = expected[o].f.empty() ? 0 : std::sqrt(square / static_cast<double>(expected[o].f.size()));
    for (size_t i = 0; i < expected[o].f.size(); ++i) {
      const double want = expected[o].f[i];
      if (!std::isfinite(want)) {
        EXPECT_TRUE(std::isnan(want) ? std::isnan(got[o].f[i]) : got[o].f[i] == want) << o << "," << i;
        continue;
      }
      ASSERT_NEAR(got[o].f[i], want, 32 * kEps * std::max(std::abs(want), rms)) << o << "," << i;
    }
  }
}

// dy^T J v by one complex evaluation against dx . v: one input perturbed at a time, four directions.
// Rounding errors of independent terms add in quadrature: tolerance = 16 eps * root-sum-square of the
// terms dx_i v_i, plus the same share of the output terms that dx sums over.
TEST_P(OpGradient, MatchesComplexStep) {
  const auto& [op, op_case] = GetParam();
  constexpr double kStep = 1e-50;
  for (const bool as_parameters : {false, true}) {
    const auto inputs = DrawInputs(op_case, 2);
    const auto graph = MakeOpGraph(*op, op_case, /*gradient=*/true, as_parameters);
    auto feeds = Feeds(*graph, inputs);
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    std::vector<std::vector<double>> dy(graph->output_gradients.size());
    for (size_t o = 0; o < dy.size(); ++o) {
      if (graph->output_gradients[o] == nullptr) continue;
      Array<float> array = Array<float>::Floats(ToDims(graph->output_gradients[o]->shape));
      for (float& v : array.f) dy[o].push_back(v = static_cast<float>(normal(random)));
      feeds.push_back({graph->output_gradients[o], array});
    }
    std::vector<size_t> checked;
    std::vector<Value*> wanted;
    for (size_t i = 0; i < graph->input_gradients.size(); ++i) {
      if (graph->input_gradients[i] == nullptr) continue;
      checked.push_back(i);
      wanted.push_back(graph->input_gradients[i]);
    }
    std::vector<double> start(inputs.size(), 0);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (graph->inputs[i] == nullptr) continue;
      Value* acc = graph->graph.FindValue(graph->inputs[i]->name + ".accumulator");
      if (acc == nullptr) continue;
      feeds.push_back({acc, Array<float>::Floats(ToDims(acc->shape), kAccumulatorStart)});
      start[i] = kAccumulatorStart;
    }
    ASSERT_FALSE(checked.empty()) << "the gradient hands nothing back";
    const auto dx = RunOnCpu(graph->graph, feeds, wanted);
    std::vector<Array<std::complex<double>>> z;
    for (const auto& input : inputs) z.push_back(Convert<std::complex<double>>(input));
    for (size_t k = 0; k < checked.size(); ++k) {
      auto& perturbed = z[checked[k]];
      ASSERT_EQ(dx[k].f.size(), perturbed.f.size());
      for (int direction = 0; direction < 4; ++direction) {
        std::vector<double> v(perturbed.f.size());
        for (size_t i = 0; i < v.size(); ++i) perturbed.f[i].imag(kStep * (v[i] = normal(random)));
        const auto y = Reference<std::complex<double>>(op->reference_c128, op_case, z);
        for (auto& element : perturbed.f) element.imag(0);
        double expected = 0, got = 0, square = 0, output_square = 0;
        for (size_t o = 0; o < dy.size(); ++o) {
          for (size_t i = 0; i < dy[o].size(); ++i) {
            const double term = dy[o][i] * y[o].f[i].imag() / kStep;
            expected += term;
            output_square += term * term;
          }
        }
        for (size_t i = 0; i < v.size(); ++i) {
          const double term = (dx[k].f[i] - start[checked[k]]) * v[i];
          got += term;
          square += term * term + std::pow(start[checked[k]] * v[i], 2);
        }
        ASSERT_NEAR(got, expected, 16 * kEps * std::sqrt(square + output_square) + 1e-30)
            << op->name << " input " << checked[k] << " direction " << direction
            << (as_parameters ? " accumulating" : "");
      }
    }
  }
}

std::string Name(const testing::TestParamInfo<Param>& info) {
  return info.param.op->name + "_" + info.param.op_case.name;
}
INSTANTIATE_TEST_SUITE_P(AllOps, OpForward, testing::ValuesIn(AllCases(false)), Name);
INSTANTIATE_TEST_SUITE_P(AllOps, OpGradient, testing::ValuesIn(AllCases(true)), Name);

}  // namespace
}  // namespace weir
