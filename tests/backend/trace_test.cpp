#include "backend/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

}  // namespace
}  // namespace weir
