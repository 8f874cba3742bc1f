// The vocabulary head spread over the GPUs of two ranks: float64, and the bits of one GPU.
#include <gtest/gtest.h>

#include "tests/kernels/gpu_ranks.h"
#include "tests/kernels/head_harness.h"

namespace weir {

static void PrintTo(DType dtype, std::ostream* out) { *out << DTypeName(dtype); }

namespace {

// Leaves of 2048 columns, groups of 8192 in bfloat16: shards that end inside a group, a leaf cut short, one leaf in all,
// more than one token block, uneven and no tokens, weights.
const HeadProblem kProblems[] = {
    {.vocabulary = 20000, .channels = 40, .leaf = 2048, .tokens = {67, 50}, .weighted = true},
    {.vocabulary = 5000, .channels = 72, .leaf = 2048, .tokens = {33, 0}},
    {.vocabulary = 307, .channels = 24, .leaf = 2048, .tokens = {9, 5}},
    {.vocabulary = 6000, .channels = 16, .leaf = 2048, .tokens = {4096 + 9, 300}, .weighted = true},
    {.vocabulary = 40001, .channels = 9, .leaf = 2048, .tokens = {31, 12}},
};

class GpuHead : public testing::TestWithParam<DType> {};

TEST_P(GpuHead, MatchesFloat64AndHasTheBitsOfOneGpu) {
  WEIR_ON_GPUS(2);
  const bool narrow = GetParam() == DType::kBFloat16;
  for (const HeadProblem& p : kProblems) {
    std::vector<HeadRun> runs = {{.strip = p.vocabulary}};
    for (const int64_t strip : {256, 2048, 8192, 1 << 20}) runs.push_back({.ranks = 2, .strip = strip});
    runs.push_back({.ranks = 2, .strip = 2048});  // the same again
    const auto results = RunHeadsOnGpus(p, runs, GetParam());
    for (size_t run = 1; run < runs.size(); ++run) {
      ExpectSameBits(results[run], results[0], StrCat("V ", p.vocabulary, " strip ", runs[run].strip));
    }
    // bfloat16: 8 roundings of 2^-9 behind an element of up to four times the root mean square.
    ExpectReference(p, results[1], GetParam(), narrow ? 1e-3 : 1e-6, narrow ? 8 * 4.0 / 512 : 2e-5);
  }
}

// Shards from zero are the sums of what both ranks would have of them.
TEST_P(GpuHead, ShardsOfTheGradientAreSums) {
  WEIR_ON_GPUS(2);
  for (const HeadProblem& p : kProblems) {
    std::vector<HeadRun> runs = {{.strip = p.vocabulary, .accumulate = false}};
    for (const int64_t strip : {2048, 8192}) {
      runs.push_back({.ranks = 2, .strip = strip, .accumulate = false, .shard_gradient = true});
      runs.push_back({.ranks = 2, .strip = strip, .accumulate = false, .shard_gradient = true, .move = "activations", .share = 8192});
    }
    const auto results = RunHeadsOnGpus(p, runs, GetParam());
    for (size_t run = 1; run < runs.size(); ++run) {
      size_t element = 0, wrong = 0;
      for (size_t rank = 0; rank < 2; ++rank) {
        EXPECT_EQ(results[run][rank].loss, results[0][rank].loss);
        EXPECT_EQ(results[run][rank].dx.f, results[0][rank].dx.f);
        for (const float sum : results[run][rank].dw.f) {
          wrong += sum != results[0][0].dw.f[element] + results[0][1].dw.f[element] ? 1 : 0;
          ++element;
        }
      }
      EXPECT_EQ(element, results[0][0].dw.f.size());
      EXPECT_EQ(wrong, 0u) << "V " << p.vocabulary << " strip " << runs[run].strip << ", " << runs[run].move << " travel";
    }
  }
}

TEST_P(GpuHead, MakesNoMoreThanIsWanted) {
  WEIR_ON_GPUS(2);
  const HeadProblem p = kProblems[0];
  const auto results = RunHeadsOnGpus(p, {{.ranks = 2, .strip = 2048}, {.ranks = 2, .strip = 2048, .outputs = 2, .accumulate = false},
                                          {.ranks = 2, .strip = 2048, .outputs = 1, .accumulate = false}}, GetParam());
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(results[1][rank].loss, results[0][rank].loss);
    EXPECT_EQ(results[2][rank].loss, results[0][rank].loss);
    EXPECT_EQ(results[1][rank].dx.f, results[0][rank].dx.f);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuHead, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace weir
