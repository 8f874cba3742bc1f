#include "tests/kernels/run_op.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "backend/cpu/parallel.h"
#include "tests/kernels/op_harness.h"

namespace weir {

Array<float> Floats(Dims dims, std::vector<float> values, DType dtype) {
  Array<float> array;
  array.dtype = dtype;
  array.dims = std::move(dims);
  array.f = std::move(values);
  return array;
}

Array<float> Ints(Dims dims, std::vector<int64_t> values) {
  Array<float> array = Array<float>::Ints(std::move(dims));
  array.i = std::move(values);
  return array;
}

Array<float> Normal(Dims dims, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Array<float> array = Array<float>::Floats(std::move(dims));
  for (float& v : array.f) v = normal(random);
  return array;
}

Array<float> Absent() {
  Array<float> array;
  array.dtype = DType::kUndefined;
  return array;
}

static const OpSchema& OpNamed(std::string_view op) {
  const OpSchema* ours = FindOp(op, "ai.weir");
  return ours != nullptr ? *ours : GetOp(op);
}

std::vector<Array<float>> RunOp(std::string_view op, const Inputs& inputs, int outputs,
                                const Attributes& attributes) {
  Graph graph;
  std::vector<std::pair<Value*, Array<float>>> feeds;
  std::vector<Value*> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool absent = inputs[i].dtype == DType::kUndefined;
    in.push_back(absent ? nullptr
                        : graph.AddInput(StrCat("x", i), inputs[i].dtype, ToShape(inputs[i].dims)));
    if (absent) continue;
    feeds.push_back({in.back(), inputs[i]});
    if (!inputs[i].is_float() && inputs[i].dims.size() <= 1) {
      in.back()->content = std::vector<Dim>(inputs[i].i.begin(), inputs[i].i.end());
    }
  }
  for (int i = 0; i < outputs; ++i) out.push_back(graph.AddValue(StrCat("y", i)));
  InferNode(*graph.AddNode(OpNamed(op), in, out, attributes));
  return RunOnCpu(graph, feeds, out);
}

std::vector<Array<double>> RunReference(std::string_view op, const Inputs& inputs, int outputs,
                                        const Attributes& attributes) {
  std::vector<Array<double>> values;
  Eval<double> eval{.attributes = attributes, .in = {}, .out = {}};
  for (const auto& input : inputs) {
    Array<double> value;
    value.dtype = input.dtype;
    value.dims = input.dims;
    value.i = input.i;
    value.f.assign(input.f.begin(), input.f.end());
    values.push_back(std::move(value));
  }
  for (const auto& value : values) {
    eval.in.push_back(value.dtype == DType::kUndefined ? nullptr : &value);
  }
  eval.out.resize(static_cast<size_t>(outputs));
  OpNamed(op).reference_f64(eval);
  return std::move(eval.out);
}

std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void ExpectSameBitsOnAnyThreads(std::string_view op, const Inputs& inputs, int outputs,
                                const Attributes& attributes) {
  std::vector<Array<float>> first;
  for (const int threads : {1, 2, 5}) {
    SetCpuThreads(threads);
    const auto got = RunOp(op, inputs, outputs, attributes);
    SetCpuThreads(0);
    if (first.empty()) first = got;
    for (size_t o = 0; o < got.size(); ++o) {
      ASSERT_EQ(got[o].f.size(), first[o].f.size());
      EXPECT_EQ(std::memcmp(got[o].f.data(), first[o].f.data(), got[o].f.size() * sizeof(float)), 0)
          << op << " output " << o << " on " << threads << " threads";
    }
  }
}

double RelativeError(const Array<float>& got, const Array<double>& want) {
  EXPECT_EQ(got.dims, want.dims);
  double worst = 0, square = 0;
  for (size_t i = 0; i < want.f.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got.f[i]) - want.f[i]));
    square += want.f[i] * want.f[i];
  }
  return worst / std::sqrt(square / static_cast<double>(want.f.size()));
}

}  // namespace weir
