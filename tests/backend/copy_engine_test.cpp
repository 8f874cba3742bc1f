#include "backend/cpu/copy_engine.h"

#include <gtest/gtest.h>

#include "backend/plan.h"
#include "graph/error.h"
#include "graph/text.h"

namespace weir {
namespace {

using Direction = CopyEngine::Direction;
constexpr auto kSlow = std::chrono::milliseconds(30);

std::byte* Bytes(std::vector<int>& values) { return reinterpret_cast<std::byte*>(values.data()); }

TEST(CpuCopyEngine, StartReturnsBeforeTheCopyAndWaitAfterIt) {
  CpuCopyEngine engine(kSlow);
  std::vector<int> from = {1, 2, 3}, to(3);
  engine.Start(7, Direction::kToHost, Bytes(to), Bytes(from), 12);
  EXPECT_EQ(to, (std::vector<int>{0, 0, 0}));
  engine.Wait(7);
  EXPECT_EQ(to, from);
}

TEST(CpuCopyEngine, AnEventIsTheLastCopyStartedUnderIt) {
  CpuCopyEngine engine(kSlow);
  std::vector<int> from = {1, 2}, to(2);
  engine.Start(0, Direction::kToHost, Bytes(to), Bytes(from), 4);
  engine.Start(0, Direction::kToHost, Bytes(to) + 4, Bytes(from) + 4, 4);
  engine.Wait(0);
  EXPECT_EQ(to, from);
}

TEST(CpuCopyEngine, DirectionsDoNotWaitForEachOther) {
  CpuCopyEngine engine(kSlow);
  std::vector<int> from = {1}, slow(1), fast(1);
  for (int i = 0; i < 4; ++i) engine.Start(1, Direction::kToHost, Bytes(slow), Bytes(from), 4);
  engine.Start(2, Direction::kToDevice, Bytes(fast), Bytes(from), 4);
  const auto start = std::chrono::steady_clock::now();
  engine.Wait(2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3 * kSlow);
  EXPECT_EQ(fast, from);
  engine.Drain();  // the vectors go before the engine
  EXPECT_EQ(slow, from);
}

// A slot is filled again only when what it held has left: without Order the fetch would win the race.
TEST(CpuCopyEngine, OrderHoldsBackLaterCopies) {
  CpuCopyEngine engine(kSlow);
  std::vector<int> slot = {1}, home(1), next = {2};
  for (int i = 0; i < 3; ++i) engine.Start(1, Direction::kToHost, Bytes(home), Bytes(slot), 4);
  engine.Order(Direction::kToDevice, 1);
  engine.Start(2, Direction::kToDevice, Bytes(slot), Bytes(next), 4);
  engine.Wait(2);
  EXPECT_EQ(home, (std::vector<int>{1}));
  EXPECT_EQ(slot, next);
}

TEST(CpuCopyEngine, WaitingForNothingIsAnError) {
  CpuCopyEngine engine({});
  EXPECT_THROW(engine.Wait(3), Error);
  EXPECT_THROW(engine.Order(Direction::kToHost, 3), Error);
}

constexpr const char* kRoundTrip =
    "graph (float[3,100] x) => (float[3,100] y)\n{\n"
    "a = Neg(x)\nhost = StashStart<event = 0>(a)\nheld = StashWait<event = 0>(a, host)\n"
    "b = FetchStart<event = 1>(held)\nc = FetchWait<event = 1>(b, held)\ny = Neg(c)\n}";

TEST(TwoMemories, EachHasItsArenaAndLedger) {
  const auto graph = ParseText(kRoundTrip);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  EXPECT_EQ(plan.host_arena_bytes, 1280);  // 1200 bytes in units of 256
  EXPECT_EQ(plan.arena_bytes, 3 * 1280);   // x and y for good; a, then b
  EXPECT_EQ(plan.host_ledger, (std::map<std::string, int64_t>{{"boundaries", 1280}, {"fragmentation", 0}}));
  EXPECT_NE(PlanTable(plan).find("host arena 1.2 KiB for 1 buffers"), std::string::npos) << PlanTable(plan);
  EXPECT_NE(PlanJson(plan).find("\"memory\": \"host\""), std::string::npos);
}

TEST(TwoMemories, SlowCopiesDeliverWhole) {
  const auto graph = ParseText(kRoundTrip);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan, {.poison = true, .device = MakeCpuDevice(kSlow)});
  std::vector<float> x(300), y(300);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 17;
  for (int run = 0; run < 2; ++run) {
    executor.Write(*graph->FindValue("x"), x.data(), 1200);
    executor.Run(Phase::kForward);
    executor.Read(*graph->FindValue("y"), y.data(), 1200);
    EXPECT_EQ(y, x);
  }
}

TEST(TwoMemories, KernelsCannotReadHostMemory) {
  const auto graph = ParseText("graph (float[4] x) => (float[4] y)\n{ host = StashStart<event = 0>(x) y = Neg(host) }");
  try {
    MakePlan(*graph, DeviceKind::kCpu);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'host' is in host memory, but Neg input 0"), std::string::npos) << error.what();
  }
}

TEST(TwoMemories, EventsAndEndsAreChecked) {
  EXPECT_THROW(ParseText("graph (float[4] x) => (float[4] y)\n{ y = StashStart(x) }"), Error);
  EXPECT_THROW(ParseText("graph (float[4] x) => (float[4] y)\n{ a = Concat<axis = 0>(x, x) h = StashStart<event = 0>(a) "
                         "y = StashWait<event = 0>(x, h) }"),
               Error);
}

}  // namespace
}  // namespace weir
