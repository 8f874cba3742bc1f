// `weir bench dispatch --ranks 2`: processes of the real program, on CPUs.
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tests/dist/program.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

struct Outcome {
  int code = 0;
  std::string out;
};

Outcome Bench(const std::string& flags) {
  const std::string command = WeirProgram() + " bench dispatch " + flags + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "cannot start " + command};
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) outcome.out += part.data();
  outcome.code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

constexpr const char* kSmall =
    "--tokens 64 --hidden 16 --expert-width 8 --experts 6 --top-k 2 --leaves 4 --unit-rows 8 --chunk-tokens 16 "
    "--min-rows 4 --repeats 2 --threads 1 --json ";

void ExpectThreeRuns(const Outcome& outcome, const char* device, const char* dtype) {
  ASSERT_EQ(outcome.code, 0) << outcome.out;
  const auto json = nlohmann::json::parse(outcome.out.substr(outcome.out.find('{')));
  EXPECT_EQ(json["device"], device);
  EXPECT_EQ(json["dtype"], dtype);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["skew_percent"], 90);
  EXPECT_EQ(json["hot_experts"], 2);
  ASSERT_EQ(json["results"].size(), 3u);
  for (const auto& run : json["results"]) {
    EXPECT_GT(run["forward_ms"].get<double>(), 0) << run.dump();
    EXPECT_GT(run["both_ms"].get<double>(), 0) << run.dump();
  }
  EXPECT_GT(json["results"][0]["load"].get<double>(), 1.5);
  EXPECT_LT(json["results"][2]["load"].get<double>(), 1.4);
  EXPECT_EQ(json["results"][2]["chunks"], 4);
}

TEST(BenchDispatchCommand, TimesThreeWaysOnTwoRanks) {
  ExpectThreeRuns(Bench(std::string(kSmall) + "--ranks 2 --expert-parallel 2 --skew 90:2"), "cpu", "float");
}

TEST(BenchDispatchCommand, TimesThreeWaysOnTwoGpus) {
  WEIR_NEEDS_GPUS(2);
  ExpectThreeRuns(Bench(std::string(kSmall) + "--device cuda --ranks 2 --expert-parallel 2 --skew 90:2"), "cuda",
                  "bfloat16");
}

TEST(BenchDispatchCommand, SaysWhatIsWrong) {
  const auto says = [](const std::string& flags, const char* text) {
    const Outcome outcome = Bench("--experts 6 --top-k 2 --json " + flags);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_NE(outcome.out.find(text), std::string::npos) << outcome.out;
  };
  says("--skew 90:7", "1..6 experts");
  says("--skew 101", "--skew 101 is not PERCENT");
  says("--skew x", "--skew x is not PERCENT");
  says("--ranks 2 --expert-parallel 3", "must divide");
  says("--leaves 0", "--leaves and --unit-rows must be positive");
}

}  // namespace
}  // namespace weir
