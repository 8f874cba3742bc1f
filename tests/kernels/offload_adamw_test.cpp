// AdamW with its moments in host memory, against the formula in double and with slow copies.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/plan.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/text.h"

namespace weir {
namespace {

// Parameters of 3 (decayed), 4 (not decayed), 1 and 0 elements. OPT-17, OPT-26
std::string Text(int64_t bucket, int64_t slots) {
  std::string head = "graph (double[] learning_rate, int64[] step, float[] clip) => ()\n", body;
  const std::pair<int, const char*> parameters[] = {{3, "0.1"}, {4, "0.0"}, {1, "0.1"}, {0, "0.1"}};
  for (const auto& [size, decay] : parameters) {
    const std::string p = "p" + std::to_string(size), type = "float[" + std::to_string(size) + "] ";
    head += "parameter " + type + p + "\ngradient " + type + p + ".grad\nstate " + type + p + ".m\nstate " + type + p + ".v\n";
    body += "  " + p + ".u, " + p + ".um, " + p + ".uv = OffloadStreamAdamW<beta1 = 0.9, beta2 = 0.95, bucket = " +
            std::to_string(bucket) + ", epsilon = 1e-08, slots = " + std::to_string(slots) + ", weight_decay = " + decay + ">(" + p + ", " +
            p + ".grad, " + p + ".m, " + p + ".v, learning_rate, step, clip)\n";
  }
  return head + "{\n  phase update\n" + body + "}";
}

class Stepper {
 public:
  Stepper(int64_t bucket, int64_t slots)
      : graph_(ParseText(Text(bucket, slots))),
        plan_(MakePlan(*graph_, DeviceKind::kCpu)),
        executor_(plan_, {.poison = true, .device = MakeCpuDevice(std::chrono::milliseconds(2))}) {}

  const Plan& plan() const { return plan_; }
  template <class T>
  void Write(const std::string& name, const std::vector<T>& values) {
    executor_.Write(*graph_->FindValue(name), values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
  }
  // Right after the step: write-backs may be under way. OPT-19
  std::vector<float> Read(const std::string& name) const {
    std::vector<float> values(static_cast<size_t>(executor_.TensorOf(*graph_->FindValue(name)).elements()));
    executor_.Read(*graph_->FindValue(name), values.data(), static_cast<int64_t>(values.size() * sizeof(float)));
    return values;
  }
  void Step(int64_t step, float clip) {
    Write<double>("learning_rate", {0.01});
    Write<int64_t>("step", {step});
    Write<float>("clip", {clip});
    executor_.Run(Phase::kUpdate);
  }

 private:
  std::unique_ptr<Graph> graph_;
  Plan plan_;
  Executor executor_;
};

float GradientAt(int size, int64_t step, size_t i) {
  return static_cast<float>(std::sin(static_cast<double>(size) + 3 * static_cast<double>(step) + static_cast<double>(i)));
}

// OPT-01: later buckets must not disturb a slot that is still going home.
TEST(OffloadStreamAdamW, MatchesTheFormulaInDoubleWhateverBucketAndSlots) {
  for (const int64_t bucket : {1, 2, 5}) {
    for (const int64_t slots : {1, 2, 3}) {
      Stepper run(bucket, slots);
      std::map<int, std::vector<double>> p, m, v;
      for (const int size : {3, 4, 1}) {
        std::vector<float> start(static_cast<size_t>(size), 0.5f);
        run.Write("p" + std::to_string(size), start);
        p[size].assign(start.begin(), start.end());
        m[size].assign(start.size(), 0);
        v[size].assign(start.size(), 0);
      }
      for (int64_t step = 1; step <= 3; ++step) {
        for (const int size : {3, 4, 1}) {
          std::vector<float> gradient;
          for (size_t i = 0; i < static_cast<size_t>(size); ++i) {
            const double g = GradientAt(size, step, i), t = static_cast<double>(step);
            gradient.push_back(static_cast<float>(g));
            p[size][i] *= 1 - 0.01 * (size == 4 ? 0.0 : 0.1);
            m[size][i] = 0.9 * m[size][i] + 0.1 * 0.5 * gradient.back();
            v[size][i] = 0.95 * v[size][i] + 0.05 * std::pow(0.5 * gradient.back(), 2);
            p[size][i] -= 0.01 / (1 - std::pow(0.9, t)) * m[size][i] / (std::sqrt(v[size][i] / (1 - std::pow(0.95, t))) + 1e-8);
          }
          run.Write("p" + std::to_string(size) + ".grad", gradient);
        }
        run.Step(step, 0.5f);
      }
      for (const int size : {3, 4, 1}) {
        const std::string name = "p" + std::to_string(size);
        const auto got_p = run.Read(name), got_m = run.Read(name + ".m"), got_v = run.Read(name + ".v");
        for (size_t i = 0; i < static_cast<size_t>(size); ++i) {
          EXPECT_NEAR(got_p[i], p[size][i], 1e-6) << name << " bucket " << bucket << " slots " << slots;
          EXPECT_NEAR(got_m[i], m[size][i], 1e-6) << name << ".m";
          EXPECT_NEAR(got_v[i], v[size][i], 1e-6) << name << ".v";
        }
      }
    }
  }
}

TEST(OffloadStreamAdamW, ANonFiniteCoefficientChangesNothing) {
  Stepper run(2, 2);
  run.Write<float>("p3", {1, 2, 3});
  run.Write<float>("p3.m", {4, 5, 6});
  run.Write<float>("p3.v", {7, 8, 9});
  run.Write<float>("p3.grad", {1, 1, 1});
  run.Step(1, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(run.Read("p3"), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(run.Read("p3.m"), (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(run.Read("p3.v"), (std::vector<float>{7, 8, 9}));
}

TEST(OffloadStreamAdamW, PlansMomentsOnTheHostAndSlotsOnTheDevice) {
  const Stepper run(2, 2);
  EXPECT_EQ(run.plan().host_ledger.at("optimizer"), 6 * 256);  // m and v of three parameters; the empty one has none
  for (const PlannedBuffer& buffer : run.plan().buffers) {
    const bool moment = buffer.name.ends_with(".m") || buffer.name.ends_with(".v");
    EXPECT_EQ(buffer.memory, moment ? Memory::kHost : Memory::kDevice) << buffer.name;
    EXPECT_TRUE(buffer.term != "staging" || buffer.bytes <= 16 * 2 * 2) << buffer.name;
  }
}

TEST(OffloadStreamAdamW, RefusesEmptyBucketsAndNoSlots_C5) {
  EXPECT_THROW(ParseText(Text(0, 1)), Error);
  EXPECT_THROW(ParseText(Text(1, 0)), Error);
}

}  // namespace
}  // namespace weir
