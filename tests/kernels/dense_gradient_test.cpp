// The canonical definition of the dense parameter gradients, bit by bit: token blocks of 4096 rows,
// each from zero, folded from the left starting with the accumulator. And wrong use of their ops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "backend/cpu/parallel.h"
#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

constexpr int64_t kTokens = 2 * 4096 + 700;

class DenseGradient : public testing::Test {
 protected:
  ~DenseGradient() override { SetCpuThreads(0); }
};

Array<float> RunCase(const char* op, const OpCase& op_case,
                     const std::vector<Array<float>>& values) {
  const auto graph = MakeOpGraph(GetOp(op), op_case, false, false);
  std::vector<std::pair<Value*, Array<float>>> feeds;
  for (size_t i = 0; i < values.size(); ++i) feeds.push_back({graph->inputs[i], values[i]});
  return RunOnCpu(graph->graph, feeds, graph->node->outputs)[0];
}

// Runs on one and on two threads and expects the same bits.
void ExpectBits(const char* op, const OpCase& op_case, const std::vector<float>& expected) {
  std::vector<Array<float>> values;
  for (const auto& input : DrawInputs(op_case, 1)) values.push_back(Convert<float>(input));
  for (const int threads : {1, 2}) {
    SetCpuThreads(threads);
    const auto got = RunCase(op, op_case, values);
    ASSERT_EQ(got.f.size(), expected.size());
    EXPECT_EQ(std::memcmp(got.f.data(), expected.data(), expected.size() * 4), 0)
        << op << ", " << threads << " threads";
  }
}

// acc + block_sum(begin, end) of every token block, in order.
template <class BlockSum>
float Fold(float acc, const BlockSum& block_sum) {
  for (int64_t row = 0; row < kTokens; row += 4096) {
    acc += block_sum(row, std::min<int64_t>(kTokens, row + 4096));
  }
  return acc;
}

TEST_F(DenseGradient, LinearWeightFoldsBlocksOntoTheAccumulator) {
  const OpCase op_case{"blocks",
                       {{.dims = {kTokens, 5}}, {.dims = {kTokens, 3}}, {.dims = {3, 5}}}};
  const auto drawn = DrawInputs(op_case, 1);
  const auto x = Convert<float>(drawn[0]), dy = Convert<float>(drawn[1]),
             acc = Convert<float>(drawn[2]);
  std::vector<float> expected;
  for (int64_t m = 0; m < 3; ++m) {
    for (int64_t k = 0; k < 5; ++k) {
      expected.push_back(Fold(acc.f[m * 5 + k], [&](int64_t begin, int64_t end) {
        float block = 0;
        for (int64_t first = begin; first < end; first += 256) {
          float sum = 0;
          for (int64_t n = first; n < std::min(end, first + 256); ++n) {
            sum = std::fma(dy.f[n * 3 + m], x.f[n * 5 + k], sum);
          }
          block += sum;
        }
        return block;
      }));
    }
  }
  ExpectBits("LinearWeightGradient", op_case, expected);
}

TEST_F(DenseGradient, BiasFoldsBlocksOntoTheAccumulator) {
  const OpCase op_case{"blocks", {{.dims = {2, kTokens / 2, 70}}, {.dims = {70}}}};
  const auto drawn = DrawInputs(op_case, 1);
  const auto dy = Convert<float>(drawn[0]), acc = Convert<float>(drawn[1]);
  std::vector<float> expected;
  for (int64_t m = 0; m < 70; ++m) {
    expected.push_back(Fold(acc.f[m], [&](int64_t begin, int64_t end) {
      float sum = 0;
      for (int64_t n = begin; n < end; ++n) sum += dy.f[n * 70 + m];
      return sum;
    }));
  }
  ExpectBits("BiasGradient", op_case, expected);
}

TEST_F(DenseGradient, EmbeddingFoldsBlocksOntoTheAccumulator) {
  constexpr int64_t kRows = 6, kWidth = 300;
  std::vector<int64_t> ids(kTokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * i % 7 % kRows);
  const OpCase op_case{"blocks",
                       {{.kind = CaseInput::Kind::kInts, .dims = {1, kTokens}, .ints = ids},
                        {.dims = {1, kTokens, kWidth}},
                        {.dims = {kRows, kWidth}}}};
  const auto drawn = DrawInputs(op_case, 1);
  const auto dy = Convert<float>(drawn[1]), acc = Convert<float>(drawn[2]);
  std::vector<float> expected;
  for (int64_t v = 0; v < kRows; ++v) {
    for (int64_t j = 0; j < kWidth; ++j) {
      expected.push_back(Fold(acc.f[v * kWidth + j], [&](int64_t begin, int64_t end) {
        float sum = 0;
        for (int64_t n = begin; n < end; ++n) {
          if (ids[static_cast<size_t>(n)] == v) sum += dy.f[n * kWidth + j];
        }
        return sum;
      }));
    }
  }
  ExpectBits("EmbeddingGradient", op_case, expected);
}

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(EmbeddingErrors, NamePositionAndValueOfAnIdOutOfRange) {
  const OpCase op_case{
      "bad",
      {{.kind = CaseInput::Kind::kInts, .dims = {2, 3}, .ints = {0, 1, 2, 3, 5, 1}},
       {.dims = {5, 4}}}};
  const auto drawn = DrawInputs(op_case, 1);
  const std::string message = MessageOf([&] {
    RunCase("Embedding", op_case, {Convert<float>(drawn[0]), Convert<float>(drawn[1])});
  });
  EXPECT_NE(message.find("id 5 at [1,1] is outside [0, 5)"), std::string::npos) << message;
}

TEST(ShapeErrors, SayWhatDoesNotMatch) {
  const auto infer = [](const char* op, std::vector<Dims> dims, Attributes attributes = {}) {
    return MessageOf([&] {
      OpCase op_case{"bad", {}, attributes};
      for (const Dims& d : dims) op_case.in.push_back({.dims = d});
      MakeOpGraph(GetOp(op), op_case, false, false);
    });
  };
  EXPECT_NE(infer("Linear", {{2, 3}, {4, 5}}).find("x [2,3] does not match weight [4,5]"),
            std::string::npos);
  EXPECT_NE(infer("Linear", {{2, 5}, {4, 5}, {5}}).find("bias [5]"), std::string::npos);
  EXPECT_NE(infer("MatMul", {{2, 3}, {4, 5}}).find("inner sizes of [2,3] and [4,5]"),
            std::string::npos);
  EXPECT_NE(infer("MatMul", {{2, 1, 3}, {4, 3, 5}}).find("batch axes"), std::string::npos);
  EXPECT_NE(infer("Gemm", {{2, 3}, {3, 5}, {4}}).find("C [4] does not broadcast"),
            std::string::npos);
  EXPECT_NE(infer("Gemm", {{3, 2}, {2, 5}}, {{"transA", int64_t{1}}}).find("inner sizes"),
            std::string::npos);
  EXPECT_NE(infer("Rotary", {{1, 2, 3, 4}, {2, 3}, {2, 3}}).find("cos [2,3]"), std::string::npos);
  EXPECT_NE(infer("LinearWeightGradient", {{4, 3}, {5, 2}}).find("different tokens"),
            std::string::npos);
}

// Symbolic shapes flow through: [batch,sequence,K] x [M,K] -> [batch,sequence,M], and so on.
TEST(SymbolicShapes, StaySymbolic) {
  Graph graph;
  const Shape tokens = {Dim::Batch(), Dim::Sequence()};
  Value* ids = graph.AddInput("ids", DType::kInt64, tokens);
  Value* table = graph.AddInput("table", DType::kFloat32, {307, 64});
  Value* weight = graph.AddInput("weight", DType::kFloat32, {96, 64});
  Value* length = graph.AddInput("length", DType::kInt64, {});
  length->content = std::vector<Dim>{Dim::Sequence()};
  Builder builder(graph);
  Value* h = builder.Op("Embedding", {ids, table});
  EXPECT_EQ(ToString(h->shape), "[batch,sequence,64]");
  EXPECT_EQ(ToString(builder.Op("Linear", {h, weight})->shape), "[batch,sequence,96]");
  EXPECT_EQ(
      ToString(builder.Op("MatMul", {h, graph.AddInput("b", DType::kFloat32, {64, 5})})->shape),
      "[batch,sequence,5]");
  const auto tables =
      builder.Ops("RotaryTable", {length}, 2, {{"inv_freq", std::vector<double>{1, 0.5}}});
  EXPECT_EQ(ToString(tables[1]->shape), "[sequence,2]");
  Value* q = graph.AddInput("q", DType::kFloat32, {Dim::Batch(), Dim::Sequence(), 4, 16});
  EXPECT_EQ(ToString(builder.Op("Rotary", {q, tables[0], tables[1]})->shape),
            "[batch,sequence,4,16]");
}

}  // namespace
}  // namespace weir
