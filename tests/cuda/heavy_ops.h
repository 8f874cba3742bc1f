// Operators run on a GPU with drawn inputs, and how their outputs are compared.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/cuda/gpu_harness.h"
#include "tests/kernels/run_op.h"

namespace weir {

class CudaHeavy : public testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

inline std::vector<Array<float>> RunOpOnGpu(std::string_view op, const Inputs& inputs, int outputs = 1,
                                            const Attributes& attributes = {}) {
  Graph graph;
  std::vector<std::pair<Value*, Array<float>>> feeds;
  std::vector<Value*> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool absent = inputs[i].dtype == DType::kUndefined;
    in.push_back(absent ? nullptr
                        : graph.AddInput(StrCat("x", i), inputs[i].dtype, ToShape(inputs[i].dims)));
    if (!absent) feeds.push_back({in.back(), inputs[i]});
  }
  for (int i = 0; i < outputs; ++i) out.push_back(graph.AddValue(StrCat("y", i)));
  const OpSchema* ours = FindOp(op, "ai.weir");
  InferNode(*graph.AddNode(ours != nullptr ? *ours : GetOp(op), in, out, attributes));
  return RunOnGpu(graph, feeds, out);
}

inline Array<float> Draw(Dims dims, uint32_t seed, DType dtype, float scale = 1) {
  Array<float> array = Normal(std::move(dims), seed, scale);
  array.dtype = dtype;
  if (dtype == DType::kBFloat16) {
    for (float& v : array.f) v = BFloat16ToFloat(FloatToBFloat16(v));
  }
  return array;
}

inline Array<float> Scalar(float value) { return Floats({}, {value}); }

// The first `rows` of the first axis.
inline Array<float> Head(const Array<float>& array, int64_t rows) {
  Array<float> head = array;
  const size_t width = static_cast<size_t>(array.elements() / array.dims[0] * rows);
  head.dims[0] = rows;
  head.f.resize(std::min(head.f.size(), width));
  head.i.resize(std::min(head.i.size(), width));
  return head;
}

inline Array<float> Ids(const Dims& dims, int64_t below, uint32_t seed) {
  std::mt19937 random(seed);
  Array<float> ids = Array<float>::Ints(dims);
  for (int64_t& id : ids.i) id = static_cast<int64_t>(random() % static_cast<uint64_t>(below));
  return ids;
}

inline void ExpectSame(const Array<float>& a, const Array<float>& b, const std::string& what) {
  ASSERT_EQ(a.f.size(), b.f.size()) << what;
  size_t differ = 0, first = 0;
  for (size_t i = a.f.size(); i-- > 0;) {
    if (std::memcmp(&a.f[i], &b.f[i], sizeof(float)) == 0) continue;
    ++differ;
    first = i;
  }
  EXPECT_EQ(differ, 0u) << what << ": of " << a.f.size() << ", first " << first << ": " << a.f[first] << " and " << b.f[first];
}

// Error over rms: `terms` roundings of one element at most add up in the same sense.
inline void ExpectClose(const std::vector<Array<float>>& got, const std::vector<Array<double>>& want, double share, const std::string& what) {
  for (size_t o = 0; o < got.size(); ++o) {
    const double error = RelativeError(got[o], want[o]);
    EXPECT_LE(error, share) << what << " output " << o;
  }
}

inline constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16};
inline double Share(DType dtype) {
  return dtype == DType::kFloat32 ? 1e-4 : 0.06;
}  // several ulps at the largest element

}  // namespace weir
