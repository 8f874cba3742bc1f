#include "backend/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/lane_trace.h"
#include "backend/plan.h"
#include "graph/text.h"

namespace weir {
namespace {

constexpr const char* kText = R"(graph two (float[2] x) => (float[2] z)
{
  y = Add(x, x)
  z = Mul(y, x)
}
)";

TEST(Trace, TellsEveryLaunchInOrder) {
  const auto graph = ParseText(kText);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan);
  executor.Run();  // not traced
  executor.StartTrace();
  executor.Run();
  const auto spans = executor.StopTrace();
  executor.Run();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].node->op(), "Add");
  EXPECT_EQ(spans[1].node->op(), "Mul");
  EXPECT_LE(spans[0].start, spans[0].end);
  EXPECT_LE(spans[0].end, spans[1].start);
}

TEST(Trace, JsonAndTableHoldTimesOpsAndGaps) {
  const auto graph = ParseText(kText);
  const Node *add = graph->nodes().front().get(), *mul = graph->nodes().back().get();
  const std::vector<TraceSpan> spans = {{add, 1.0, 1.001}, {mul, 1.003, 1.006}};
  const auto json = nlohmann::json::parse(TraceJson(spans));
  std::vector<nlohmann::json> launches;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") launches.push_back(event);
  }
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[1]["name"], "Mul");
  EXPECT_NEAR(launches[1]["ts"].get<double>(), 3000, 1e-6);
  EXPECT_NEAR(launches[1]["dur"].get<double>(), 3000, 1e-6);
  const std::string table = TraceTable(spans);
  EXPECT_LT(table.find("forward Mul"), table.find("forward Add"));
  EXPECT_NE(table.find("2.000 ms   33.3 %"), std::string::npos) << table;  // between launches
  EXPECT_NE(table.find("6.000 ms  100.0 %"), std::string::npos) << table;
}

// Copies of 20 ms beside a launch, and waited for by the next: they are where they ran, under the node that started them.
TEST(Trace, CopiesHaveLanesOfTheirOwn) {
  const auto graph = ParseText(R"(graph stash (float[1000] x) => (float[1000] z)
{
  h = StashStart<event = 1>(x)
  y = Add(x, x)
  g = StashWait<event = 1>(x, h)
  f = FetchStart<event = 2>(g)
  w = FetchWait<event = 2>(f, g)
  z = Add(w, y)
}
)");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan, {.device = MakeCpuDevice(std::chrono::milliseconds(20))});
  executor.Run();  // not traced
  EXPECT_TRUE(TakeLanes().empty());
  executor.StartTrace();
  executor.Run();
  const auto spans = executor.StopTrace();
  executor.Run();
  const auto lanes = TakeLanes();
  EXPECT_TRUE(TakeLanes().empty());
  ASSERT_EQ(lanes.size(), 2u);
  EXPECT_EQ(lanes[0].lane, "to host");
  EXPECT_EQ(lanes[0].node->op(), "StashStart");
  EXPECT_EQ(lanes[1].lane, "to device");
  EXPECT_EQ(lanes[1].node->op(), "FetchStart");
  for (const LaneSpan& span : lanes) EXPECT_GE(span.end - span.start, 0.02);
  EXPECT_GE(lanes[0].start, spans[0].start);
  EXPECT_LE(lanes[0].end, spans[2].end);   // StashWait
  EXPECT_GE(lanes[1].start, spans[3].start);
  EXPECT_LE(lanes[1].end, spans[4].end);   // FetchWait
  const auto json = nlohmann::json::parse(TraceJson(spans, lanes));
  std::map<int, std::string> names;
  std::map<std::string, std::string> started;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "M") names[event["tid"]] = event["args"]["name"];
  }
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") started[names.at(event["tid"])] = event["name"];
  }
  EXPECT_EQ(started.at("to host"), "StashStart");
  EXPECT_EQ(started.at("to device"), "FetchStart");
  const std::string table = LaneTable(spans, lanes);
  EXPECT_NE(table.find("to host StashStart"), std::string::npos) << table;
}

}  // namespace
}  // namespace weir
