// The head spread over ranks that are threads: the bits of each rank's whole head, and the float64 reference.
#include <gtest/gtest.h>

#include <complex>
#include <cstring>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/layout.h"
#include "graph/vocabulary_share.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

struct HeadProblem {
  int64_t vocabulary = 307, channels = 12, leaf = 64;
  std::vector<int64_t> tokens = {9, 5, 7, 4};  // of each rank
  int64_t world() const { return std::ssize(tokens); }
};

Array<float> Rows(const Array<float>& from, const Share& share) {
  const int64_t width = from.dims[1];
  return Floats({share.size(), width}, {from.f.begin() + share.begin * width, from.f.begin() + share.end * width});
}

// x, the whole weight, labels on every shard (every fifth ignored), scale, accumulator of one rank.
Inputs InputsOf(const HeadProblem& p, int64_t rank) {
  const int64_t n = p.tokens[static_cast<size_t>(rank)];
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < n; ++i) labels.push_back(i % 5 == 4 ? -100 : (i * 7919 + rank * 101) % p.vocabulary);
  const auto seed = static_cast<uint32_t>(rank * 10);
  return {Normal({n, p.channels}, seed + 1), Normal({p.vocabulary, p.channels}, 2, 0.5f), Ints({n}, labels),
          Floats({}, {1.0f / 29}), Normal({p.vocabulary, p.channels}, seed + 3)};
}

Attributes Knobs(const HeadProblem& p, int64_t ranks, int64_t strip) {
  Attributes knobs{{"strip", strip}, {"vocab_leaf", p.leaf}};
  if (ranks == 1) return knobs;
  knobs.Set("group", std::string("vocabulary"));
  knobs.Set("vocab_parallel", ranks);
  knobs.Set("vocabulary", p.vocabulary);
  return knobs;
}

void Feed(const Executor& executor, const Value& value, const Array<float>& array) {
  const Tensor tensor = executor.TensorOf(value);
  if (array.is_float()) std::ranges::copy(array.f, tensor.data<float>());
  if (!array.is_float()) std::ranges::copy(array.i, tensor.data<int64_t>());
}

Array<float> Result(const Executor& executor, const Value& value) {
  const Tensor t = executor.TensorOf(value);
  if (t.dtype == DType::kFloat64) return Floats({}, {static_cast<float>(*t.data<double>())});
  return Floats(t.dims, {t.data<float>(), t.data<float>() + t.elements()});
}

using Results = std::vector<Array<float>>;  // loss, dx, dW

Results RunRank(const Inputs& in, int outputs, const Attributes& attributes, Communicator* world) {
  Graph graph;
  std::vector<Value*> inputs, results;
  for (size_t i = 0; i < in.size(); ++i) {
    inputs.push_back(graph.AddInput(StrCat("x", i), in[i].dtype, ToShape(in[i].dims)));
    if (i == 4) inputs.back()->role = Role::kGradient;
  }
  for (int i = 0; i < outputs; ++i) results.push_back(graph.AddValue(StrCat("y", i)));
  InferNode(*graph.AddNode(GetOp("RingDtp", "ai.weir"), inputs, results, attributes));
  graph.outputs = results;
  const Plan plan = MakePlan(graph, DeviceKind::kCpu);
  Executor executor(plan, {.poison = true, .communicator = world});
  for (size_t i = 0; i < in.size(); ++i) Feed(executor, *inputs[i], in[i]);
  executor.Run();
  Results out;
  for (const Value* value : results) out.push_back(Result(executor, *value));
  return out;
}

// Every rank's results, the vocabulary spread over runs of `ranks` of them.
std::vector<Results> RunSpread(const HeadProblem& p, int64_t ranks, int64_t strip, int outputs = 3, bool accumulate = true) {
  std::vector<Results> all(p.tokens.size());
  RunRanks(p.world(), [&](Communicator& world) {
    const int64_t rank = world.rank();
    world.SetLayout({.world = p.world(), .vocabulary_parallel = ranks});
    Inputs in = InputsOf(p, rank);
    in[1] = Rows(in[1], VocabularyShare(p.vocabulary, p.leaf, ranks, rank % ranks));
    if (!accumulate) in.pop_back();
    all[static_cast<size_t>(rank)] = RunRank(in, outputs, Knobs(p, ranks, strip), &world);
  });
  return all;
}

bool SameBits(const Array<float>& a, const Array<float>& b) {
  return a.dims == b.dims && std::memcmp(a.f.data(), b.f.data(), a.f.size() * 4) == 0;
}

void ExpectSameBits(const std::vector<Results>& got, const std::vector<Results>& want, const std::string& what) {
  for (size_t rank = 0; rank < want.size(); ++rank) {
    for (size_t i = 0; i < want[rank].size(); ++i) {
      EXPECT_TRUE(SameBits(got[rank][i], want[rank][i])) << what << ", rank " << rank << ", result " << i;
    }
  }
}

void ExpectBitsOfOneRank(const HeadProblem& p, const std::vector<int64_t>& strips, const std::string& what = "") {
  const auto whole = RunSpread(p, 1, p.vocabulary);
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t strip : strips) {
      ExpectSameBits(RunSpread(p, ranks, strip), whole, StrCat(what, " P ", ranks, " strip ", strip));
    }
  }
}

// V = 307: five leaves of 64, the last of 51; rank 0 of four holds two.
TEST(RingDtpRanks, TheBitsAreThoseOfOneRank) { ExpectBitsOfOneRank({}, {1, 64, 130, 256, 8192}); }

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

// RTD-09 and its kind: uneven and zero tokens.
TEST(RingDtpRanks, TheBitsAreThoseOfOneRankWithoutTokens) {
  ExpectBitsOfOneRank({.tokens = {0, 6, 0, 1}}, {64, 256});
  ExpectBitsOfOneRank({.tokens = {0, 0, 0, 0}}, {64});
}

TEST(RingDtpRanks, LeavesOutWhatNobodyWants) {
  const HeadProblem p;
  const auto all = RunSpread(p, 4, 64);
  for (const int outputs : {1, 2}) {
    const auto got = RunSpread(p, 4, 64, outputs, false);
    for (size_t rank = 0; rank < got.size(); ++rank) {
      for (size_t i = 0; i < got[rank].size(); ++i) EXPECT_TRUE(SameBits(got[rank][i], all[rank][i])) << outputs;
    }
  }
  ExpectSameBits(RunSpread(p, 4, 64, 3, false), RunSpread(p, 1, p.vocabulary, 3, false), "no accumulator");
}

// Each rank against the reference on its own tokens and the whole weight.
TEST(RingDtpRanks, ResultsAreThoseOfTheReference) {
  for (const HeadProblem& p : {HeadProblem{}, HeadProblem{.vocabulary = 5000, .channels = 40, .leaf = 1024}}) {
    const auto got = RunSpread(p, 4, 256);
    for (int64_t rank = 0; rank < p.world(); ++rank) {
      const auto want = RunReference("RingDtp", InputsOf(p, rank), 3);
      const Results& own = got[static_cast<size_t>(rank)];
      EXPECT_NEAR(own[0].f[0], want[0].f[0], 1e-6 * want[0].f[0]);
      EXPECT_LT(RelativeError(own[1], want[1]), 1e-5) << rank;
      EXPECT_LT(RelativeError(own[2], want[2]), 1e-5) << rank;
    }
  }
}

// d loss / d x by the complex step: the loss of the spread head belongs to its gradient.
TEST(RingDtpRanks, GradientsAreThoseOfTheComplexStep) {
  const HeadProblem p{.vocabulary = 23, .channels = 3, .leaf = 4, .tokens = {3, 2}};
  const auto got = RunSpread(p, 2, 4);
  for (int64_t rank = 0; rank < p.world(); ++rank) {
    const Inputs in = InputsOf(p, rank);
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
    const Results& own = got[static_cast<size_t>(rank)];
    for (size_t i = 0; i < own[1].f.size(); ++i) EXPECT_NEAR(own[1].f[i], derivative(0, i), 1e-7) << "dx " << i;
    for (size_t i = 0; i < own[2].f.size(); ++i) {
      EXPECT_NEAR(own[2].f[i] - in[4].f[i], derivative(1, i), 1e-6) << "dW " << i;
    }
  }
}

// One rank's wrong label ends all in words.
TEST(RingDtpRanks, AWrongLabelEndsAllRanks_C3) {
  const HeadProblem p;
  const std::string error = ErrorOf([&] {
    RunRanks(4, [&](Communicator& world) {
      world.SetLayout({.world = 4, .vocabulary_parallel = 4});
      Inputs in = InputsOf(p, world.rank());
      in[1] = Rows(in[1], VocabularyShare(p.vocabulary, p.leaf, 4, world.rank()));
      if (world.rank() == 2) in[2].i[3] = p.vocabulary;
      RunRank(in, 3, Knobs(p, 4, 64), &world);
    });
  });
  EXPECT_NE(error.find("label 307 at position 3 is outside [0,307)"), std::string::npos) << error;
}

TEST(RingDtpRanks, WrongUseIsRefused_C5C6) {
  const HeadProblem p;
  const auto error = [&](const Attributes& attributes, const Share& rows) {
    Inputs in = InputsOf(p, 0);
    in[1] = Rows(in[1], rows);
    return ErrorOf([&] { RunRank(in, 3, attributes, nullptr); });
  };
  Attributes knobs = Knobs(p, 4, 64);
  EXPECT_NE(error(knobs, {0, 100}).find("C6: 100 rows are no rank's share of 307"), std::string::npos);
  EXPECT_NE(error(knobs, {0, 128}).find("runs on 1"), std::string::npos) << error(knobs, {0, 128});
  knobs.Set("vocabulary", int64_t{0});
  EXPECT_NE(error(knobs, {0, 128}).find("C6"), std::string::npos);
  for (const int64_t leaf : {0, 300}) {
    const std::string text = error({{"vocab_leaf", leaf}}, {0, 307});
    EXPECT_NE(text.find(StrCat("C5: vocab_leaf is ", leaf)), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weir
