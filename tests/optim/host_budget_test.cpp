// MEM-02 of public reports: a machine's memory is that of all its ranks together, and is asked for before any is taken.
#include "backend/host_memory.h"
#include "tests/optim/same_bits.h"

namespace weir {
namespace {

TEST(HostBudget, IsOfTheMachineNotOfARank_MEM02) {
  const int64_t available = ReadHostMemory().available;
  if (available < 0) GTEST_SKIP() << "this machine does not say what it has";
  const auto graph = LoadFamily("olmoe");
  TrainingOptions options;
  options.recompute = "layer";
  options.host_budget = int64_t{1} << 50;
  const auto bytes = [&](int64_t tokens) {
    const auto training = TrainingGraphOf(*graph, options, 1, tokens);
    const Plan plan = MakePlan(*training, DeviceKind::kCpu);
    return plan.arena_bytes + plan.host_arena_bytes;
  };
  // Bytes grow evenly with tokens: three quarters of what there is fits one rank, and not two.
  constexpr int64_t kFew = 1 << 13;
  const int64_t some = bytes(kFew), per_token = (bytes(2 * kFew) - some) / kFew;
  const int64_t tokens = (available / 4 * 3 - some) / per_token + kFew;
  ASSERT_GT(tokens, kFew) << available << " bytes are too few for this test";
  ASSERT_NEAR(static_cast<double>(bytes(tokens)), 0.75 * static_cast<double>(available), 0.05 * static_cast<double>(available));
  PassManager passes;
  Placement place;
  place.local_ranks = 2;
  try {
    TrainingSession session(*graph, options, 1, tokens, {}, passes, place);
    ADD_FAILURE() << "two ranks of three quarters each";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudgetExceeded) << error.what();
    EXPECT_NE(error.message().find("2 ranks of this machine"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace weir
