// AdamW and OffloadStreamAdamW on masters in two halves: the bits of a step on whole masters, and the formula in double.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "backend/plan.h"
#include "graph/dtype.h"
#include "graph/error.h"
#include "graph/split_master.h"
#include "graph/text.h"
#include "tests/kernels/run_op.h"

namespace weir {
namespace {

constexpr size_t kCount = 1031;
constexpr double kRate = 0.01;

struct How {
  const char* op = "AdamW";
  bool split = false;
  int64_t bucket = 1, slots = 1;
};

std::string Text(const How& how, size_t count = kCount) {
  const std::string n = "[" + std::to_string(count) + "]";
  std::string head = "graph (double[] learning_rate, int64[] step, float[] clip) => ()\n";
  head += std::string("parameter ") + (how.split ? "bfloat16" : "float") + n + " p\ngradient float" + n + " g\nstate float" + n + " m\nstate float" + n + " v\n";
  if (how.split) head += "state uint16" + n + " low\n";
  const std::string knobs = how.op == std::string("AdamW") ? "" : StrCat("bucket = ", how.bucket, ", slots = ", how.slots, ", ");
  return StrCat(head, "{\n  phase update\n  u, um, uv", how.split ? ", ul" : "", " = ", how.op, "<beta1 = 0.9, beta2 = 0.95, ", knobs,
                "epsilon = 1e-08, weight_decay = 0.1>(p, g, m, v, learning_rate, step, clip", how.split ? ", low" : "", ")\n}");
}

using Bits = std::vector<uint32_t>;

class Stepper {
 public:
  explicit Stepper(const How& how)
      : how_(how),
        graph_(ParseText(Text(how))),
        plan_(MakePlan(*graph_, DeviceKind::kCpu)),
        executor_(plan_, {.poison = true, .device = MakeCpuDevice(std::chrono::microseconds(300))}) {}

  const Plan& plan() const { return plan_; }
  void SetMasters(const Bits& masters) {
    if (!how_.split) return Write("p", masters);
    std::vector<uint16_t> high, low;
    Bits v = Read<uint32_t>("v");
    for (size_t i = 0; i < masters.size(); ++i) {
      const SplitBits halves = SplitMaster(masters[i]);
      high.push_back(halves.high);
      low.push_back(halves.low);
      v[i] = WithTie(v[i], halves.tie);
    }
    Write("p", high);
    Write("low", low);
    Write("v", v);
  }
  Bits Masters() const {
    if (!how_.split) return Read<uint32_t>("p");
    const auto high = Read<uint16_t>("p"), low = Read<uint16_t>("low");
    Bits masters = Read<uint32_t>("v");
    for (size_t i = 0; i < masters.size(); ++i) masters[i] = JoinMaster(high[i], low[i], TieOf(masters[i]));
    return masters;
  }
  Bits M() const { return Read<uint32_t>("m"); }
  Bits V() const {
    Bits v = Read<uint32_t>("v");
    for (uint32_t& bits : v) bits = how_.split ? WithoutTie(bits) : bits;
    return v;
  }
  std::vector<uint16_t> Weights() const { return Read<uint16_t>("p"); }
  void Step(int64_t step, const std::vector<float>& gradient, float clip = 0.5f, double rate = kRate) {
    Write("g", gradient);
    Write<double>("learning_rate", {rate});
    Write<int64_t>("step", {step});
    Write<float>("clip", {clip});
    executor_.Run(Phase::kUpdate);
  }

 private:
  template <class T>
  void Write(const std::string& name, const std::vector<T>& values) {
    executor_.Write(*graph_->FindValue(name), values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  template <class T>
  std::vector<T> Read(const std::string& name) const {
    std::vector<T> values(static_cast<size_t>(executor_.TensorOf(*graph_->FindValue(name)).elements()));
    executor_.Read(*graph_->FindValue(name), values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    return values;
  }

  How how_;
  std::unique_ptr<Graph> graph_;
  Plan plan_;
  Executor executor_;
};

// Of all sizes and signs; every fifth one a tie, every seventh zero.
Bits Start() {
  Bits masters;
  for (uint32_t i = 0; i < kCount; ++i) {
    const float size = std::ldexp(1 + static_cast<float>(i % 97) / 97, static_cast<int>(i % 40) - 30);
    uint32_t bits = std::bit_cast<uint32_t>(i % 2 == 0 ? size : -size);
    if (i % 5 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
    masters.push_back(i % 7 == 0 ? 0 : bits);
  }
  return masters;
}

std::vector<float> GradientAt(int64_t step) {
  std::vector<float> gradient;
  for (size_t i = 0; i < kCount; ++i) {
    const double wave = std::sin(static_cast<double>(i) + 3 * static_cast<double>(step));
    gradient.push_back(static_cast<float>(i % 11 == 0 ? 0 : std::ldexp(wave, -static_cast<int>(i % 60))));
  }
  return gradient;
}

std::vector<How> SplitRuns() {
  std::vector<How> runs = {{.split = true}};
  for (const int64_t bucket : {13, 256, 5000}) {
    for (const int64_t slots : {1, 2, 3}) runs.push_back({.op = "OffloadStreamAdamW", .split = true, .bucket = bucket, .slots = slots});
  }
  return runs;
}

std::string Name(const How& how) { return StrCat(how.op, " bucket ", how.bucket, " slots ", how.slots); }

TEST(SplitAdamW, StepsWithTheBitsOfWholeMasters) {
  for (const How& how : SplitRuns()) {
    Stepper whole({}), split(how);
    whole.SetMasters(Start());
    split.SetMasters(Start());
    ASSERT_EQ(split.Masters(), Start()) << Name(how);
    for (int64_t step = 1; step <= 4; ++step) {
      whole.Step(step, GradientAt(step));
      split.Step(step, GradientAt(step));
      ASSERT_EQ(split.Masters(), whole.Masters()) << Name(how) << " step " << step;
      ASSERT_EQ(split.M(), whole.M()) << Name(how) << " step " << step;
      ASSERT_EQ(split.V(), whole.V()) << Name(how) << " step " << step;
    }
    const Bits masters = whole.Masters();
    const auto weights = split.Weights();
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(weights[i], FloatToBFloat16(std::bit_cast<float>(masters[i]))) << i;
  }
}

// What rounds up or down by one bit alone must pass through steps that do not move it.
TEST(SplitAdamW, KeepsTiesWhereNothingMoves) {
  for (const How& how : SplitRuns()) {
    Stepper run(how);
    run.SetMasters(Start());
    for (int64_t step = 1; step <= 2; ++step) run.Step(step, GradientAt(step), 1, 0);
    EXPECT_EQ(run.Masters(), Start()) << Name(how);
    EXPECT_NE(run.V(), Bits(kCount, 0)) << Name(how);
  }
}

TEST(SplitAdamW, ANonFiniteCoefficientChangesNothing) {
  for (const How& how : SplitRuns()) {
    Stepper run(how);
    run.SetMasters(Start());
    run.Step(1, GradientAt(1));
    const Bits p = run.Masters(), m = run.M(), v = run.V();
    run.Step(2, GradientAt(2), std::numeric_limits<float>::infinity());
    EXPECT_EQ(run.Masters(), p) << Name(how);
    EXPECT_EQ(run.M(), m) << Name(how);
    EXPECT_EQ(run.V(), v) << Name(how);
  }
}

// The truth: torch's definition in double, from the float32 master on. Rounding of float32 as for AdamW.
TEST(SplitAdamW, MatchesTorchsDefinitionInFloat64) {
  Stepper run({.op = "OffloadStreamAdamW", .split = true, .bucket = 100, .slots = 2});
  run.SetMasters(Start());
  for (int64_t step = 1; step <= 3; ++step) {
    const Bits p0 = run.Masters(), m0 = run.M(), v0 = run.V();
    const auto gradient = GradientAt(step);
    run.Step(step, gradient);
    const Bits p1 = run.Masters();
    const auto real = [](uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits)); };
    for (size_t i = 0; i < kCount; ++i) {
      const double g = 0.5 * static_cast<double>(gradient[i]), t = static_cast<double>(step);
      const double m = real(m0[i]) + 0.1 * (g - real(m0[i])), v = 0.95 * real(v0[i]) + 0.05 * g * g;
      const double p = real(p0[i]) * (1 - kRate * 0.1) - kRate / (1 - std::pow(0.9, t)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(0.95, t)) + 1e-8);
      ASSERT_NEAR(real(p1[i]), p, 3e-7 * std::max(std::abs(p), kRate)) << i;
    }
  }
}

// The schema's own formula: the same to float32 rounding, so that halves differ by what an ulp of the master does.
TEST(SplitAdamW, ReferenceStepsTheMaster) {
  const Bits masters = Start();
  Array<float> p = Array<float>::Floats({kCount}), v = Array<float>::Floats({kCount}, 0.25f), low = Array<float>::Ints({kCount}, DType::kUInt16);
  p.dtype = DType::kBFloat16;
  Array<float> whole = Array<float>::Floats({kCount});
  for (size_t i = 0; i < kCount; ++i) {
    const SplitBits halves = SplitMaster(masters[i]);
    whole.f[i] = std::bit_cast<float>(masters[i]);
    p.f[i] = BFloat16ToFloat(halves.high);
    low.i[i] = halves.low;
    if (halves.tie != 0) v.f[i] = -v.f[i];
  }
  const Array<float> m = Array<float>::Floats({kCount}, 0.125f), positive = Array<float>::Floats({kCount}, 0.25f);
  const Array<float> g = Floats({kCount}, GradientAt(1)), rate = Floats({}, {0.01f}, DType::kFloat64), step = Ints({}, {3}), clip = Floats({}, {1});
  const OpSchema& schema = GetOp("AdamW", "ai.weir");
  const auto want = Evaluate(schema, {}, {&whole, &g, &m, &positive, &rate, &step, &clip}, 3);
  const auto got = Evaluate(schema, {}, {&p, &g, &m, &v, &rate, &step, &clip, &low}, 4);
  for (size_t i = 0; i < kCount; ++i) {
    const uint32_t stored = std::bit_cast<uint32_t>(got[2].f[i]);
    const uint32_t bits = JoinMaster(FloatToBFloat16(got[0].f[i]), static_cast<uint16_t>(got[3].i[i]), TieOf(stored));
    ASSERT_EQ(bits, std::bit_cast<uint32_t>(want[0].f[i])) << i;
    ASSERT_EQ(WithoutTie(stored), std::bit_cast<uint32_t>(want[2].f[i])) << i;
  }
}

TEST(SplitAdamW, PlansLowHalvesBesideTheMoments) {
  const Stepper here({.split = true}), host({.op = "OffloadStreamAdamW", .split = true, .bucket = 16, .slots = 2});
  const auto aligned = [](int64_t bytes) { return DivCeil(bytes, 256) * 256; };
  const auto n = static_cast<int64_t>(kCount);
  EXPECT_EQ(here.plan().ledger.at("optimizer"), 2 * aligned(4 * n) + aligned(2 * n));
  EXPECT_EQ(here.plan().ledger.at("weights"), aligned(2 * n));
  EXPECT_EQ(host.plan().host_ledger.at("optimizer"), 2 * aligned(4 * n) + aligned(2 * n));
  for (const PlannedBuffer& buffer : host.plan().buffers) {
    if (buffer.term == "staging") {
      EXPECT_EQ(buffer.bytes, 10 * 2 * 16);
    }
  }
}

TEST(SplitAdamW, RefusesHalvesThatDoNotMatch_C6) {
  const auto error = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    return ErrorOf([&] { ParseText(text); });
  };
  const std::string split = Text({.split = true});
  EXPECT_EQ(error(split, "bfloat16", "bfloat16"), "");
  EXPECT_NE(error(split, "bfloat16", "float").find("C6"), std::string::npos);
  EXPECT_NE(error(split, "uint16", "int16").find("C6"), std::string::npos);
  EXPECT_NE(error(split, ", ul", "").find("C6"), std::string::npos);
  EXPECT_NE(error(Text({}), "parameter float", "parameter bfloat16").find("C6"), std::string::npos);
  EXPECT_NE(error(split, "uint16[1031]", "uint16[1030]").find("C1"), std::string::npos);
}

}  // namespace
}  // namespace weir
