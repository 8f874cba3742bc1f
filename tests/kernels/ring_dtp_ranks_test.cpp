// The head spread over ranks that are threads: the bits of each rank's whole head, and the float64 reference.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>

#include "backend/cpu/thread_communicator.h"
#include "graph/layout.h"
#include "graph/vocabulary_share.h"
#include "tests/kernels/head_harness.h"

namespace weir {
namespace {

void ExpectBitsOfOneRank(const HeadProblem& p, const std::vector<int64_t>& strips, const std::string& what = "") {
  const auto whole = RunHeads(p, {.strip = p.vocabulary});
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t strip : strips) {
      ExpectSameBits(RunHeads(p, {.ranks = ranks, .strip = strip}), whole, StrCat(what, " P ", ranks, " strip ", strip));
    }
  }
}

// V = 307: five leaves of 64, the last of 51; rank 0 of four holds two.
TEST(RingDtpRanks, TheBitsAreThoseOfOneRank) { ExpectBitsOfOneRank({}, {1, 64, 130, 256, 8192}); }

TEST(RingDtpRanks, TheBitsAreThoseOfOneRankWithWeights) {
  ExpectBitsOfOneRank({.weighted = true}, {64, 8192});
  ExpectBitsOfOneRank({.tokens = {4096 + 3, 6, 0, 1}, .weighted = true}, {64});
}

TEST(RingDtpRanks, TheBitsAreThoseOfOneRankWithFullLeaves) {
  ExpectBitsOfOneRank({.vocabulary = 3 * 2048 + 100, .channels = 7, .leaf = 2048}, {256, 2048, 3000, 8192});
}

TEST(RingDtpRanks, TheBitsAreThoseOfOneRankOverTokenBlocks) {
  ExpectBitsOfOneRank({.channels = 3, .tokens = {4096 + 3, 2, 0, 4096}}, {64, 8192});
}

// Fewer leaves than ranks: some hold nothing and take part.
TEST(RingDtpRanks, TheBitsAreThoseOfOneRankWhereSomeHoldNothing) {
  for (const int64_t vocabulary : {1, 5, 64, 130}) {
    ExpectBitsOfOneRank({.vocabulary = vocabulary}, {64, 8192}, StrCat("V ", vocabulary));
  }
}

// VCE-02: nothing is padded; up to eight ranks share five columns.
TEST(RingDtpRanks, TheBitsAreThoseOfOneRankWhereNothingDivides) {
  for (const int64_t vocabulary : {5, 7, 11}) {
    for (const int64_t ranks : {2, 3, 4, 8}) {
      for (const int64_t leaf : {1, 3, 2048}) {
        const HeadProblem p{.vocabulary = vocabulary, .channels = 4, .leaf = leaf, .tokens = std::vector<int64_t>(static_cast<size_t>(ranks), 3)};
        ExpectSameBits(RunHeads(p, {.ranks = ranks, .strip = leaf}), RunHeads(p, {.strip = vocabulary}), StrCat("V ", vocabulary, " P ", ranks));
      }
    }
  }
}

// RTD-09 and its kind: uneven and zero tokens.
TEST(RingDtpRanks, TheBitsAreThoseOfOneRankWithoutTokens) {
  ExpectBitsOfOneRank({.tokens = {0, 6, 0, 1}}, {64, 256});
  ExpectBitsOfOneRank({.tokens = {0, 0, 0, 0}}, {64});
}

TEST(RingDtpRanks, LeavesOutWhatNobodyWants) {
  const HeadProblem p;
  const auto all = RunHeads(p, {.ranks = 4, .strip = 64});
  for (const int outputs : {1, 2}) {
    const auto got = RunHeads(p, {.ranks = 4, .strip = 64, .outputs = outputs, .accumulate = false});
    for (size_t rank = 0; rank < got.size(); ++rank) {
      EXPECT_EQ(got[rank].loss, all[rank].loss);
      EXPECT_TRUE(outputs < 2 || got[rank].dx.f == all[rank].dx.f) << outputs;
    }
  }
  ExpectSameBits(RunHeads(p, {.ranks = 4, .strip = 64, .accumulate = false}), RunHeads(p, {.strip = p.vocabulary, .accumulate = false}),
                 "no accumulator");
}

// t(a..b) = t(a..m) + t(m..b), m = a + (b-a)/2, of one element of the group's ranks.
float TreeOf(const std::vector<float>& x, size_t a, size_t b) {
  return b - a == 1 ? x[a] : TreeOf(x, a, a + (b - a) / 2) + TreeOf(x, a + (b - a) / 2, b);
}

// The shards of the gradient are the tree sums of what whole accumulators from zero would have, on top of the shard.
TEST(RingDtpRanks, ShardsOfTheGradientAreSumsOverTheGroup) {
  for (const bool accumulate : {true, false}) {
    for (const int64_t ranks : {2, 4}) {
      for (const HeadProblem& p : {HeadProblem{}, HeadProblem{.tokens = {0, 6, 0, 1}}, HeadProblem{.vocabulary = 40}}) {
        const auto parts = RunHeads(p, {.ranks = ranks, .strip = 64, .accumulate = false});
        for (const int64_t strip : {64, 8192}) {
          const auto got = RunHeads(p, {.ranks = ranks, .strip = strip, .accumulate = accumulate, .shard_gradient = true});
          for (int64_t rank = 0; rank < p.world(); ++rank) {
            const auto at = static_cast<size_t>(rank), first = static_cast<size_t>(rank / ranks * ranks);
            const Share held = VocabularyShare(p.vocabulary, p.leaf, ranks, rank % ranks);
            const auto start = HeadInputs(p, rank)[4].f;
            EXPECT_EQ(got[at].loss, parts[at].loss);
            EXPECT_EQ(got[at].dx.f, parts[at].dx.f);
            ASSERT_EQ(got[at].dw.dims, (Dims{held.size(), p.channels}));
            for (size_t k = 0; k < got[at].dw.f.size(); ++k) {
              const size_t element = k + static_cast<size_t>(held.begin * p.channels);
              std::vector<float> of_ranks;
              for (size_t r = first; r < first + static_cast<size_t>(ranks); ++r) of_ranks.push_back(parts[r].dw.f[element]);
              const float sum = TreeOf(of_ranks, 0, of_ranks.size());
              ASSERT_EQ(got[at].dw.f[k], accumulate ? start[element] + sum : sum) << "rank " << rank << " element " << element;
            }
          }
        }
      }
    }
  }
}

// The same columns, cut elsewhere: runs of three leaves.
void ExpectSameBitsInOtherShares(const HeadProblem& p, HeadRun run, const std::string& move, const std::vector<HeadResult>& want) {
  run.move = move;
  run.share = 3 * p.leaf;
  const auto got = RunHeads(p, run);
  const auto group = static_cast<size_t>(run.ranks);
  std::vector<float> columns[2];
  for (size_t rank = 0; rank < group; ++rank) {
    EXPECT_EQ(got[rank].loss, want[rank].loss) << move;
    EXPECT_EQ(got[rank].dx.f, want[rank].dx.f) << move;
    columns[0].insert(columns[0].end(), got[rank].dw.f.begin(), got[rank].dw.f.end());
    columns[1].insert(columns[1].end(), want[rank].dw.f.begin(), want[rank].dw.f.end());
  }
  EXPECT_EQ(columns[0], columns[1]) << move;
}

// Tokens that travel have the bits of weights that travel.
void ExpectBitsOfWeightsThatTravel(const HeadProblem& p, const std::vector<int64_t>& strips) {
  for (const int64_t ranks : {2, 4}) {
    for (const bool accumulate : {true, false}) {
      const HeadRun weights{.ranks = ranks, .strip = p.leaf, .accumulate = accumulate, .shard_gradient = true};
      const auto want = RunHeads(p, weights);
      for (const int64_t strip : strips) {
        HeadRun run = weights;
        run.strip = strip;
        run.move = "activations";
        ExpectSameBits(RunHeads(p, run), want, StrCat("P ", ranks, " strip ", strip, " V ", p.vocabulary));
        if (accumulate) continue;
        for (const char* move : {"weights", "activations"}) ExpectSameBitsInOtherShares(p, run, move, want);
      }
    }
  }
}

TEST(RingDtpRanks, TokensThatTravelHaveTheBitsOfWeightsThatTravel) { ExpectBitsOfWeightsThatTravel({}, {1, 64, 130, 8192}); }

TEST(RingDtpRanks, TokensThatTravelBringTheirWeights) {
  ExpectBitsOfWeightsThatTravel({.weighted = true}, {64, 8192});
  ExpectBitsOfWeightsThatTravel({.channels = 3, .tokens = {4096 + 3, 6, 0, 1}, .weighted = true}, {64});
}

TEST(RingDtpRanks, TokensThatTravelHaveTheBitsOfWeightsThatTravelWithFullLeaves) {
  ExpectBitsOfWeightsThatTravel({.vocabulary = 3 * 2048 + 100, .channels = 7, .leaf = 2048}, {256, 3000});
}

TEST(RingDtpRanks, TokensThatTravelHaveTheBitsOfWeightsThatTravelOverTokenBlocks) {
  ExpectBitsOfWeightsThatTravel({.channels = 3, .tokens = {4096 + 3, 2, 0, 8192}}, {64, 8192});
}

TEST(RingDtpRanks, TokensThatTravelHaveTheBitsOfWeightsThatTravelWhereSomeHoldOrBringNothing) {
  for (const int64_t vocabulary : {1, 5, 64, 130}) ExpectBitsOfWeightsThatTravel({.vocabulary = vocabulary}, {64, 8192});
  ExpectBitsOfWeightsThatTravel({.tokens = {0, 6, 0, 1}}, {64});
  ExpectBitsOfWeightsThatTravel({.tokens = {0, 0, 0, 0}}, {64});
}

// Three ranks: t(0..1) + t(1..3).
TEST(RingDtpRanks, TokensThatTravelHaveTheBitsOfWeightsThatTravelOnThreeRanks) {
  const HeadProblem p{.tokens = {3, 7, 5}};
  HeadRun run{.ranks = 3, .strip = 64, .shard_gradient = true};
  const auto want = RunHeads(p, run);
  run.move = "activations";
  ExpectSameBits(RunHeads(p, run), want, "P 3");
}

// Frozen weights and frozen models below.
TEST(RingDtpRanks, TokensThatTravelLeaveOutWhatNobodyWants) {
  const HeadProblem p;
  const auto all = RunHeads(p, {.ranks = 4, .strip = 64});
  for (const int outputs : {1, 2}) {
    const auto got = RunHeads(p, {.ranks = 4, .strip = 64, .outputs = outputs, .accumulate = false, .move = "activations"});
    for (size_t rank = 0; rank < got.size(); ++rank) {
      EXPECT_EQ(got[rank].loss, all[rank].loss);
      EXPECT_TRUE(outputs < 2 || got[rank].dx.f == all[rank].dx.f) << outputs;
    }
  }
}

TEST(RingDtpRanks, TokensThatTravelHaveTheResultsOfTheReference) {
  const HeadProblem p{.vocabulary = 5000, .channels = 40, .leaf = 1024, .tokens = {9, 5}, .weighted = true};
  auto got = RunHeads(p, {.ranks = 2, .strip = 256, .accumulate = false, .shard_gradient = true, .move = "activations"});
  for (int64_t rank = 0; rank < 2; ++rank) {  // the shard's gradient is that of both ranks' tokens
    const Share held = VocabularyShare(p.vocabulary, p.leaf, 2, rank);
    std::vector<double> sum(static_cast<size_t>(held.size() * p.channels));
    for (int64_t source = 0; source < 2; ++source) {
      Inputs in = HeadInputs(p, source);
      in[4] = Absent();
      const auto want = RunReference("RingDtp", in, 3);
      for (size_t k = 0; k < sum.size(); ++k) sum[k] += want[2].f[k + static_cast<size_t>(held.begin * p.channels)];
      if (source != rank) continue;
      EXPECT_NEAR(got[static_cast<size_t>(rank)].loss, want[0].f[0], 1e-6 * want[0].f[0]);
      EXPECT_LT(RelativeError(got[static_cast<size_t>(rank)].dx, want[1]), 1e-5);
    }
    double distance = 0, norm = 0;
    for (size_t k = 0; k < sum.size(); ++k) {
      distance += std::pow(got[static_cast<size_t>(rank)].dw.f[k] - sum[k], 2);
      norm += sum[k] * sum[k];
    }
    EXPECT_LT(std::sqrt(distance / norm), 1e-5) << rank;
  }
}

// 9 tokens are fewer than 307/4 columns a rank; 200 are more.
TEST(RingDtpRanks, AutoMovesWhatIsLess) {
  for (const int64_t tokens : {9, 200}) {
    const HeadProblem p{.tokens = std::vector<int64_t>(4, tokens)};
    const auto run = [&](const std::string& move) { return RunHeads(p, {.ranks = 4, .strip = 64, .shard_gradient = true, .move = move}); };
    const auto weights = run("weights"), activations = run("activations"), chosen = run("auto");
    EXPECT_NE(weights[0].arena_bytes, activations[0].arena_bytes);
    EXPECT_EQ(chosen[0].arena_bytes, (tokens == 9 ? activations : weights)[0].arena_bytes) << tokens;
    ExpectSameBits(chosen, weights, StrCat(tokens, " tokens"));
  }
}

// VCE-19: P = 8 against float64, too.
TEST(RingDtpRanks, ResultsAreThoseOfTheReference) {
  const HeadProblem eight{.vocabulary = 1003, .channels = 16, .leaf = 64, .tokens = {3, 4, 1, 5, 1, 2, 3, 6}};
  ExpectReference(eight, RunHeads(eight, {.ranks = 8, .strip = 64}), DType::kFloat32, 1e-6, 1e-5);
  for (const HeadProblem& p : {HeadProblem{}, HeadProblem{.weighted = true}, HeadProblem{.vocabulary = 5000, .channels = 40, .leaf = 1024}}) {
    ExpectReference(p, RunHeads(p, {.ranks = 4, .strip = 256}), DType::kFloat32, 1e-6, 1e-5);
  }
}

// d loss / d x by the complex step: the loss of the spread head belongs to its gradient.
TEST(RingDtpRanks, GradientsAreThoseOfTheComplexStep) {
  const HeadProblem p{.vocabulary = 23, .channels = 3, .leaf = 4, .tokens = {3, 2}, .weighted = true};
  const auto got = RunHeads(p, {.ranks = 2, .strip = 4});
  for (int64_t rank = 0; rank < p.world(); ++rank) {
    const Inputs in = HeadInputs(p, rank);
    std::vector<Array<std::complex<double>>> at;
    for (const auto& input : in) {
      Array<std::complex<double>> value;
      value.dtype = input.dtype;
      value.dims = input.dims;
      value.i = input.i;
      value.f.assign(input.f.begin(), input.f.end());
      at.push_back(std::move(value));
    }
    const auto derivative = [&](size_t input, size_t element) {
      constexpr double kStep = 1e-30;
      auto moved = at;
      moved[input].f[element] += std::complex<double>(0, kStep);
      Eval<std::complex<double>> eval{.attributes = {}, .in = {}, .out = {}};
      for (const auto& value : moved) eval.in.push_back(&value);
      eval.out.resize(1);
      GetOp("RingDtp", "ai.weir").reference_c128(eval);
      return eval.out[0].f[0].imag() / kStep;
    };
    const HeadResult& own = got[static_cast<size_t>(rank)];
    for (size_t i = 0; i < own.dx.f.size(); ++i) EXPECT_NEAR(own.dx.f[i], derivative(0, i), 1e-7) << "dx " << i;
    for (size_t i = 0; i < own.dw.f.size(); ++i) {
      EXPECT_NEAR(own.dw.f[i] - in[4].f[i], derivative(1, i), 1e-6) << "dW " << i;
    }
  }
}

// One rank's wrong label ends all in words.
TEST(RingDtpRanks, AWrongLabelEndsAllRanks_C3) {
  const HeadProblem p;
  for (const char* move : {"weights", "activations"}) {
    const HeadRun run{.ranks = 4, .strip = 64, .shard_gradient = true, .move = move};
    const std::string error = ErrorOf([&] {
      RunRanks(4, [&](Communicator& world) {
        world.SetLayout({.world = 4, .vocabulary_parallel = 4});
        Inputs in = ShardedInputs(p, run, world.rank());
        if (world.rank() == 2) in[2].i[3] = p.vocabulary;
        RunHead(in, 3, HeadAttributes(p, run), &world);
      });
    });
    EXPECT_NE(error.find("label 307 at position 3 is outside [0,307)"), std::string::npos) << move << ": " << error;
  }
}

TEST(RingDtpRanks, WrongUseIsRefused_C5C6C7) {
  const HeadProblem p;
  const auto error = [&](const Attributes& attributes, int64_t rows) {
    Inputs in = HeadInputs(p, 0);
    in[1] = Normal({rows, p.channels}, 1);
    return ErrorOf([&] { RunHead(in, 3, attributes, nullptr); });
  };
  Attributes attributes = HeadAttributes(p, {.ranks = 4, .strip = 64});
  EXPECT_NE(error(attributes, 100).find("C6: 100 rows are no rank's share of 307"), std::string::npos);
  EXPECT_NE(error(attributes, 128).find("runs on 1"), std::string::npos) << error(attributes, 128);
  Attributes moving = attributes;
  moving.Set("move", std::string("activations"));
  EXPECT_NE(error(moving, 128).find("C7: move is 'activations' with a whole gradient"), std::string::npos) << error(moving, 128);
  moving.Set("move", std::string("both"));
  EXPECT_NE(error(moving, 128).find("C7: move is 'both', expected weights"), std::string::npos) << error(moving, 128);
  Attributes shares = attributes;
  shares.Set("share_columns", int64_t{96});
  EXPECT_NE(error(shares, 128).find("C6: share_columns is 96"), std::string::npos) << error(shares, 128);
  attributes.Set("vocabulary", int64_t{0});
  EXPECT_NE(error(attributes, 128).find("C6"), std::string::npos);
  for (const int64_t leaf : {0, 300}) {
    const std::string text = error({{"vocab_leaf", leaf}}, 307);
    EXPECT_NE(text.find(StrCat("C5: vocab_leaf is ", leaf)), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weir
