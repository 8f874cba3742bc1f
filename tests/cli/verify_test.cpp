// weir verify on its own batches: what it takes for rounding, and what not.
#include "optim/verify.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace weir {
namespace {

int Verify(const std::string& arguments) {
  const int status = std::system((WEIR_PROGRAM " verify " WEIR_SOURCE_DIR "/models/" + arguments + " >/dev/null 2>&1").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// One token attends to itself alone: gradients of query and key are zero, what float32 has of them is rounding.
TEST(Verify, OneTokenIsNoFalseAlarm) {
  EXPECT_EQ(Verify("mixtral/dynamo18_batched_mm_eager.onnx --sequence 1"), 0);
  EXPECT_EQ(Verify("qwen3_moe/dynamo18_batched_mm_eager.onnx --sequence 1"), 0);
  EXPECT_EQ(Verify("deepseek_v3/dynamo18_batched_mm_eager.onnx --sequence 1 --seed 5"), 0);
}

// Of gradients whose norm is 1 together, at 1e-5: an error may be 1e-5 of its gradient, or 1.2e-7.
TEST(Verify, ErrorsAboveRoundingStillFail) {
  const auto limit = [](double norm) { return 1e-5 * GradientScale(norm, 1, 1e-5); };
  EXPECT_DOUBLE_EQ(limit(0.5), 5e-6);
  EXPECT_NEAR(limit(1e-3), 0x1p-23, 1e-20);
  EXPECT_NEAR(limit(0), 0x1p-23, 1e-20);
  EXPECT_LE(GradientScale(0, 1, 0), 1) << "a tolerance of 0 allows no error";
  const auto stored = [](double norm) { return 1e-5 * ReferenceScale(norm, 1, 1e-5); };
  EXPECT_DOUBLE_EQ(stored(1e-3), 1e-8);
  EXPECT_DOUBLE_EQ(stored(1e-6), 1e-9);
  EXPECT_NEAR(stored(1e-9), 0x1p-23, 1e-20);
}

}  // namespace
}  // namespace weir
