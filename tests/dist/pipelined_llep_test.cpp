// Experts over the GPUs of two ranks: float64, the CPU's float32, and one set of bits whatever the
// knobs.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/dtype.h"
#include "tests/kernels/dispatch_harness.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

constexpr double kEps = 1.1920929e-7;

struct Case {
  const char* name;
  DispatchProblem sizes;
  std::vector<int64_t> tokens;  // per rank
  Routing routing;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// Expert 0 half of the time, expert 1 a quarter, and so on.
int64_t Skewed(int64_t rank, int64_t token, int64_t slot) {
  uint32_t state = static_cast<uint32_t>(rank * 7919 + token * 31 + slot) * 2654435761u;
  state ^= state >> 15;
  int64_t expert = 0;
  for (; (state & 1) != 0 && expert < 30; state >>= 1) ++expert;
  return expert;
}
int64_t Balanced(int64_t rank, int64_t token, int64_t slot) { return rank + token + slot; }

// Widths that tensor cores take, and odd ones.
std::vector<Case> Cases() {
  const DispatchProblem wide{.h = 64, .i = 48, .e = 8, .k = 2, .leaves = 5, .unit_rows = 7};
  const DispatchProblem odd{.h = 9, .i = 5, .e = 5, .k = 3, .leaves = 4, .unit_rows = 3};
  const auto one = [](int64_t, int64_t, int64_t) { return int64_t{1}; };
  const auto first = [](int64_t, int64_t, int64_t) { return int64_t{0}; };
  return {{"balanced", wide, {60, 60}, Balanced}, {"skewed", wide, {60, 47}, Skewed},
          {"odd_widths", odd, {40, 33}, Skewed},  {"all_to_one", wide, {40, 40}, one},
          {"idle_rank", odd, {24, 24}, first},    {"no_tokens_on_one", wide, {0, 50}, Skewed},
          {"one_token", odd, {1, 0}, Skewed},     {"no_tokens", odd, {0, 0}, Balanced}};
}

DispatchProblem Problem(const Case& c) {
  const int64_t experts = c.sizes.e;
  return MakeProblem(c.sizes, c.tokens,
                     [&](int64_t r, int64_t t, int64_t s) { return c.routing(r, t, s) % experts; });
}

// Activations and matrices that bfloat16 represents.
DispatchProblem Rounded(DispatchProblem p) {
  const auto round = [](Array<float>& array) {
    for (float& value : array.f) value = BFloat16ToFloat(FloatToBFloat16(value));
  };
  round(p.gate_up);
  round(p.down);
  for (auto& rank : p.ranks) round(rank.x), round(rank.dy);
  return p;
}

Attributes Eager(int64_t chunk_tokens, double alpha = 1, int64_t max_foreign = 2) {
  return {{"llep_lambda", 1.0},
          {"llep_alpha", alpha},
          {"min_rows", int64_t{1}},
          {"max_foreign", max_foreign},
          {"chunk_tokens", chunk_tokens}};
}

// Largest |got - want| over the largest |want|: experts with few routes leave most of an array
// small.
double PeakError(const Array<float>& got, const Array<double>& want) {
  double worst = 0, peak = 0;
  for (size_t i = 0; i < want.f.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got.f[i]) - want.f[i]));
    peak = std::max(peak, std::abs(want.f[i]));
  }
  return worst == 0 ? 0 : worst / peak;
}

using Measure = double (*)(const Array<float>&, const Array<double>&);

void ExpectNear(const std::vector<DispatchResult>& got, const std::vector<DispatchResult>& want,
                double tolerance, Measure measure = RelativeError) {
  const auto near = [&](const Array<float>& a, const Array<float>& b, const char* what,
                        size_t rank) {
    Array<double> exact;
    exact.dims = b.dims;
    exact.f.assign(b.f.begin(), b.f.end());
    ASSERT_EQ(a.dims, b.dims) << what;
    if (a.f.empty()) return;
    EXPECT_LT(measure(a, exact), tolerance) << what << " of rank " << rank;
  };
  for (size_t rank = 0; rank < want.size(); ++rank) {
    near(got[rank].y, want[rank].y, "y", rank);
    near(got[rank].dx, want[rank].dx, "dx", rank);
    near(got[rank].dweights, want[rank].dweights, "dweights", rank);
    ASSERT_EQ(got[rank].gradients.size(), want[rank].gradients.size());
    for (size_t g = 0; g < want[rank].gradients.size(); ++g)
      near(got[rank].gradients[g], want[rank].gradients[g], "weight gradient", rank);
  }
}

class GpuDispatch : public testing::TestWithParam<Case> {};

// Rounding of the sums of up to 300 float32 terms.
TEST_P(GpuDispatch, MatchesFloat64InFloat32) {
  WEIR_ON_GPUS(2);
  const DispatchProblem problem = Problem(GetParam());
  const auto truth = RunTruth(problem, 0.5f);
  for (const auto& run :
       RunDispatchOnGpus(problem, {{}, Eager(7), Eager(0)}, 0.5f, DType::kFloat32)) {
    ExpectNear(run, truth, 64 * kEps);
  }
}

// At most 8 roundings to bfloat16 of up to 2^-8 each stand behind an element.
constexpr double kBFloat16Tolerance = 8.0 / 256;

TEST_P(GpuDispatch, MatchesFloat64InBFloat16) {
  WEIR_ON_GPUS(2);
  const DispatchProblem problem = Rounded(Problem(GetParam()));
  const auto truth = RunTruth(problem, 0.5f);
  for (const auto& run :
       RunDispatchOnGpus(problem, {{}, Eager(7), Eager(0)}, 0.5f, DType::kBFloat16)) {
    ExpectNear(run, truth, kBFloat16Tolerance, PeakError);
  }
}

TEST_P(GpuDispatch, AgreesWithTheCpuInFloat32) {
  WEIR_ON_GPUS(2);
  const DispatchProblem problem = Problem(GetParam());
  ExpectNear(RunDispatchOnGpus(problem, {Eager(9)}, 0.5f, DType::kFloat32)[0],
             RunDispatch(problem, Eager(9), 0.5f).ranks, 1e-5);
}

// Plain expert parallelism in one chunk is the twin of every plan.
TEST_P(GpuDispatch, HasTheSameBitsWhateverTheKnobs) {
  WEIR_ON_GPUS(2);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t unit_rows : {int64_t{3}, int64_t{4096}}) {
      DispatchProblem problem = Rounded(Problem(GetParam()));
      problem.unit_rows = unit_rows;
      std::vector<Attributes> knobs = {{}, {}, {{"chunk_tokens", int64_t{9}}}};
      for (const int64_t chunk_tokens : {0, 1, 5, 12, 25}) {
        for (const double alpha : {1.0, 1.3}) {
          for (const int64_t max_foreign : {1, 4})
            knobs.push_back(Eager(chunk_tokens, alpha, max_foreign));
        }
      }
      const auto runs = RunDispatchOnGpus(problem, knobs, 0.25f, dtype);
      for (size_t run = 1; run < runs.size(); ++run) {
        ExpectSameBits(runs[run], runs[0],
                       StrCat(DTypeName(dtype), ", unit_rows ", unit_rows, ", knobs ", run));
        EXPECT_EQ(runs[run][0].counts.i, runs[0][1].counts.i);
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuDispatch, testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// More rows than a batch, units of many tiles, and experts lent back and forth.
TEST(GpuDispatchSizes, LongChunksHaveTheBitsOfOne) {
  WEIR_ON_GPUS(2);
  const DispatchProblem problem = Rounded(
      MakeProblem({.h = 64, .i = 40, .e = 6, .k = 4, .leaves = 8, .unit_rows = 1000}, {4000, 3001},
                  [](int64_t r, int64_t t, int64_t s) { return Skewed(r, t, s) % 6; }));
  const auto runs = RunDispatchOnGpus(problem, {{}, Eager(0), Eager(1200), Eager(2500, 1.1, 1)}, 0,
                                      DType::kBFloat16);
  ExpectNear(runs[0], RunTruth(problem), kBFloat16Tolerance, PeakError);
  for (size_t run = 1; run < runs.size(); ++run)
    ExpectSameBits(runs[run], runs[0], StrCat("knobs ", run));
}

TEST(GpuDispatchErrors, ABadIdOnOneRankStopsAll) {
  WEIR_ON_GPUS(2);
  DispatchProblem problem =
      MakeProblem({}, {8, 8}, [](int64_t, int64_t t, int64_t s) { return (t + s) % 4; });
  problem.ranks[1].ids.i[5] = 4;
  const std::string error = ErrorOf([&] { RunDispatchOnGpus(problem, {{}}, 0, DType::kFloat32); });
  EXPECT_NE(error.find("expert id 4 at token 2 slot 1 is outside [0,4)"), std::string::npos)
      << error;
}

}  // namespace
}  // namespace weir
