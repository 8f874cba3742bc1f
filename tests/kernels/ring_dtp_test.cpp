// The bounded head against hand arithmetic and, bit by bit, against the nodes that it replaces.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/kernel.h"
#include "graph/builder.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

Attributes Strip(int64_t columns) { return {{"strip", columns}}; }

bool SameBits(const Array<float>& a, const Array<float>& b) {
  return a.dims == b.dims && a.f.size() == b.f.size() &&
         std::memcmp(a.f.data(), b.f.data(), a.f.size() * 4) == 0;
}

// x, weight, labels (every fifth ignored), loss_scale, accumulator.
Inputs HeadInputs(Dims x, int64_t vocabulary, int64_t ignore_index = -100) {
  const Dims tokens(x.begin(), x.end() - 1), weight = {vocabulary, x.back()};
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < NumElements(tokens); ++i)
    labels.push_back(i % 5 == 4 ? ignore_index : i * 7919 % vocabulary);
  return {Normal(std::move(x), 1), Normal(weight, 2, 0.5f), Ints(tokens, labels),
          Floats({}, {1.0f / 29}), Normal(weight, 3)};
}

// loss, dx, dW by Linear, CrossEntropy, CrossEntropyGradient, MatMul and LinearWeightGradient.
std::vector<Array<float>> Twin(const Inputs& in) {
  const auto logits = RunOp("Linear", {in[0], in[1]})[0];
  Inputs loss_inputs = {logits, in[2], in[3]};
  if (in.size() > 5) loss_inputs.push_back(in[5]);
  const auto loss = RunOp("CrossEntropy", loss_inputs, 2);
  Inputs gradient_inputs = {logits, in[2], loss[1], in[3], Floats({}, {1})};
  if (in.size() > 5) gradient_inputs.push_back(in[5]);
  const auto dlogits = RunOp("CrossEntropyGradient", gradient_inputs)[0];
  Inputs weight_gradient = {in[0], dlogits};
  if (in.size() > 4) weight_gradient.push_back(in[4]);
  return {loss[0], RunOp("MatMul", {dlogits, in[1]})[0],
          RunOp("LinearWeightGradient", weight_gradient)[0]};
}

void ExpectTwin(const Inputs& in, const std::vector<int64_t>& strips) {
  const auto want = Twin(in);
  for (const int64_t strip : strips) {
    const auto got = RunOp("RingDtp", in, 3, Strip(strip));
    const std::string what =
        StrCat("x ", ToString(in[0].dims), " V ", in[1].dims[0], " strip ", strip);
    EXPECT_EQ(got[0].f, want[0].f) << what;
    EXPECT_TRUE(SameBits(got[1], want[1])) << "dx, " << what;
    EXPECT_TRUE(SameBits(got[2], want[2])) << "dW, " << what;
  }
}

// One token x = 1 with weight (0, log 3), labelled 1: p = (1/4, 3/4), loss log 4 - log 3.
TEST(RingDtp, MatchesHandArithmetic) {
  const float log3 = std::log(3.0f);
  const auto y = RunOp("RingDtp",
                       {Floats({1, 1}, {1}), Floats({2, 1}, {0, log3}), Ints({1}, {1}),
                        Floats({}, {0.5f}), Floats({2, 1}, {10, 20})},
                       3);
  EXPECT_NEAR(y[0].f[0], 0.5 * std::log(4.0 / 3), 1e-7);
  EXPECT_NEAR(y[1].f[0], -0.125 * std::log(3.0), 1e-7);
  EXPECT_NEAR(y[2].f[0], 10.125, 1e-6);
  EXPECT_NEAR(y[2].f[1], 19.875, 2e-6);
}

TEST(RingDtp, HasTheTwinsBitsForAnyStrip) {
  for (const int64_t vocabulary : {5, 307, 2048, 5000}) {
    for (const int64_t tokens : {1, 7})
      ExpectTwin(HeadInputs({tokens, 67}, vocabulary), {256, 512, 1024, vocabulary});
  }
}

TEST(RingDtp, HasTheTwinsBitsOverTokenBlocks) {
  for (const int64_t vocabulary : {5, 307, 2048, 5000}) {
    ExpectTwin(HeadInputs({4096 + 5, 5}, vocabulary), {256, 512, 1024, vocabulary});
  }
}

// Weights 0 to 7/4, over strips and token blocks.
TEST(RingDtp, HasTheTwinsBitsWithWeights) {
  for (const int64_t tokens : {7, 4096 + 5}) {
    Inputs in = HeadInputs({tokens, 5}, 2500);
    in.push_back(Floats({tokens}, {}));
    for (int64_t i = 0; i < tokens; ++i) in[5].f.push_back(static_cast<float>(i * 5 % 8) / 4);
    ExpectTwin(in, {256, 1024, 2500});
    Inputs masked(in.begin(), in.begin() + 5);
    for (int64_t i = 0; i < tokens; ++i) {
      const auto at = static_cast<size_t>(i);
      if (i % 3 == 0) in[2].i[at] = masked[2].i[at] < 0 ? 0 : masked[2].i[at], masked[2].i[at] = -100;
      in[5].f[at] = i % 3 == 0 ? 0 : 1;
    }
    const auto want = RunOp("RingDtp", masked, 3, Strip(256)), got = RunOp("RingDtp", in, 3, Strip(256));
    EXPECT_EQ(got[0].f, want[0].f);
    EXPECT_TRUE(SameBits(got[1], want[1]) && SameBits(got[2], want[2])) << "weight 0 is no label, weight 1 no weight";
  }
}

TEST(RingDtp, HasTheTwinsBitsWithoutAccumulator) {
  Inputs in = HeadInputs({4096 + 5, 3}, 700);
  in.pop_back();
  ExpectTwin(in, {256, 700});
}

// Channels beyond one k block, and strips that are no multiple of anything: rounded up.
TEST(RingDtp, HasTheTwinsBitsForOddStripsAndWideRows) {
  ExpectTwin(HeadInputs({9, 700}, 2500), {1, 255, 257, 2100, 1 << 30});
}

// VCE-20: a batch of uneven sequences is a run of tokens.
TEST(RingDtp, HasTheTwinsBitsForUnevenBatches) {
  ExpectTwin(HeadInputs({2, 7, 33}, 1000), {256, 512, 1000});
}

TEST(RingDtp, LeavesOutWhatNobodyWants) {
  const Inputs in = HeadInputs({5, 8}, 600);
  const auto all = RunOp("RingDtp", in, 3, Strip(256));
  const Inputs frozen(in.begin(), in.begin() + 4);
  EXPECT_EQ(RunOp("RingDtp", frozen, 1, Strip(256))[0].f, all[0].f);
  EXPECT_TRUE(SameBits(RunOp("RingDtp", frozen, 2, Strip(256))[1], all[1]));
}

// VCE-08
TEST(RingDtp, AllIgnoredGivesZeroLossAndZeroGradients) {
  Inputs in = HeadInputs({3, 8}, 600);
  in[2] = Ints({3}, {-100, -100, -100});
  in[3] = Floats({}, {0});
  const auto y = RunOp("RingDtp", in, 3, Strip(256));
  EXPECT_EQ(y[0].f[0], 0);
  for (const float g : y[1].f) EXPECT_EQ(g, 0);
  EXPECT_EQ(y[2].f, in[4].f);
}

// VCE-17
TEST(RingDtp, RejectsLabelsOutsideTheVocabulary_C3) {
  const auto error = [](int64_t label, int64_t ignore_index) {
    Inputs in = HeadInputs({3, 2}, 5, ignore_index);
    in[2].i[2] = label;
    return ErrorOf([&] { RunOp("RingDtp", in, 3, {{"ignore_index", ignore_index}}); });
  };
  EXPECT_NE(error(5, -100).find("label 5 at position 2 is outside [0,5)"), std::string::npos)
      << error(5, -100);
  EXPECT_NE(error(-1, -100).find("label -1 at position 2"), std::string::npos);
  EXPECT_NE(error(-100, 2).find("label -100 at position 2"), std::string::npos);
  EXPECT_EQ(error(-100, -100), "");
  EXPECT_EQ(error(2, 2), "");
}

TEST(RingDtp, RejectsWrongUse_C1C2C4C8) {
  const Inputs good = HeadInputs({3, 4}, 5);
  const auto error = [&](size_t input, Array<float> value, int64_t strip = 8192) {
    Inputs in = good;
    in[input] = std::move(value);
    return ErrorOf([&] { RunOp("RingDtp", in, 3, Strip(strip)); });
  };
  EXPECT_NE(error(1, Normal({5, 3}, 1)).find("C1"), std::string::npos);
  EXPECT_NE(error(1, Normal({0, 4}, 1)).find("C1"), std::string::npos);
  EXPECT_NE(error(4, Normal({4, 5}, 1)).find("C1: accumulator"), std::string::npos);
  EXPECT_NE(error(2, Ints({2}, {0, 0})).find("C2"), std::string::npos);
  EXPECT_NE(error(2, Floats({3}, {0, 0, 0})).find("C2"), std::string::npos);
  EXPECT_NE(error(0, good[0], 0).find("C4: strip is 0"), std::string::npos);
  Inputs weighted = good;
  weighted.push_back(Floats({2}, {1, 1}));
  const std::string told = ErrorOf([&] { RunOp("RingDtp", weighted, 3); });
  EXPECT_NE(told.find("C8: weights float[2] must be float32, shaped as labels [3]"), std::string::npos) << told;
}

int64_t Workspace(int64_t tokens, int64_t channels, int64_t vocabulary, int64_t strip) {
  Graph graph;
  Value* x = graph.AddInput("x", DType::kFloat32, {tokens, channels});
  Value* weight = graph.AddInput("weight", DType::kFloat32, {vocabulary, channels});
  Value* labels = graph.AddInput("labels", DType::kInt64, {tokens});
  Value* scale = graph.AddInput("scale", DType::kFloat32, {});
  Value* accumulator = graph.AddInput("accumulator", DType::kFloat32, {vocabulary, channels});
  Builder builder(graph);
  const auto outputs =
      builder.Ops("RingDtp", {x, weight, labels, scale, accumulator}, 3, Strip(strip));
  const Node& node = *outputs[0]->producer;
  return FindKernel(DeviceKind::kCpu, *node.schema)->workspace_bytes(node);
}

// VCE-01: 65536 x 50257 logits have more than 2^31 elements; a strip of them has 4096 x strip.
// VCE-11: neither more tokens nor more vocabulary need more memory, dW's partial sums included.
TEST(RingDtp, WorkspaceIsBoundedByTheStrip) {
  for (const int64_t strip : {256, 8192}) {
    const int64_t bytes = Workspace(65536, 512, 50257, strip);
    EXPECT_GE(bytes, 4096 * strip * 4);
    EXPECT_LE(bytes, 4096 * strip * 4 + 4096 * 20 + 512 * 512 * 4);
    EXPECT_EQ(Workspace(1 << 20, 512, 50257, strip), bytes);
    EXPECT_EQ(Workspace(65536, 512, 1 << 20, strip), bytes);
  }
  EXPECT_EQ(Workspace(65536, 512, int64_t{1} << 40, int64_t{1} << 30) / 4096 >> 32,
            1);  // beyond 32 bits, not wrapped
}

TEST(RingDtp, BitsDoNotDependOnThreads) {
  ExpectSameBitsOnAnyThreads("RingDtp", HeadInputs({37, 70}, 5000), 3, Strip(512));
}

}  // namespace
}  // namespace weir
