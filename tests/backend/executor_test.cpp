#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "backend/arena_layout.h"
#include "backend/plan.h"
#include "graph/error.h"
#include "graph/op_schema.h"
#include "graph/text.h"

namespace weir {
namespace {

void Write(const Executor& executor, const Graph& graph, const char* name, const std::vector<float>& values) {
  const Tensor tensor = executor.TensorOf(*graph.FindValue(name));
  ASSERT_EQ(tensor.elements(), static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), tensor.data<float>());
}

std::vector<float> Read(const Executor& executor, const Graph& graph, const char* name) {
  const Tensor tensor = executor.TensorOf(*graph.FindValue(name));
  return {tensor.data<float>(), tensor.data<float>() + tensor.elements()};
}

int64_t SumOfBuffers(const Plan& plan) {
  int64_t sum = 0;
  for (const PlannedBuffer& buffer : plan.buffers) sum += Aligned(buffer.bytes);
  return sum;
}

template <class F>
void ExpectError(ErrorCode code, const std::string& part, F run) {
  try {
    run();
    FAIL() << "no error, expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

// Five weights that double their input, so the truth is exact: y = 2^5 x.
constexpr const char* kChain =
    "graph (float[3,100] x) => (float[3,100] y)\n"
    "parameter float[100,100] w\n"
    "{ a = Linear(x, w) b = Linear(a, w) c = Linear(b, w) d = Linear(c, w) y = Linear(d, w) }";

std::vector<float> ScaledIdentity(int64_t n, float scale) {
  std::vector<float> w(static_cast<size_t>(n * n), 0.0f);
  for (int64_t i = 0; i < n; ++i) w[static_cast<size_t>(i * n + i)] = scale;
  return w;
}

TEST(Executor, RunsAChainInLessMemoryThanItsBuffers) {
  const auto graph = ParseText(kChain);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  EXPECT_LT(plan.arena_bytes, SumOfBuffers(plan));
  // x, w and y stay; of a..d two are alive at once, each in its own place.
  EXPECT_EQ(plan.arena_bytes, Aligned(100 * 100 * 4) + 4 * Aligned(3 * 100 * 4));
  Executor executor(plan, {.poison = true});
  std::vector<float> x(300), expected(300);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i), expected[i] = 32 * x[i];
  Write(executor, *graph, "x", x);
  Write(executor, *graph, "w", ScaledIdentity(100, 2));
  executor.Run(Phase::kForward);
  EXPECT_EQ(Read(executor, *graph, "y"), expected);
  // Poison reached what died: the plan reuses those bytes.
  EXPECT_TRUE(std::isnan(Read(executor, *graph, "d")[0]));
}

TEST(Executor, RunsOnlyTheNodesOfThePhase) {
  const auto graph = ParseText(
      "graph (float[1,2] x) => (float[1,2] y, float[1,2] z)\nparameter float[2,2] w\n"
      "{ y = Linear(x, w) phase backward z = Linear(y, w) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan);
  Write(executor, *graph, "x", {1, 2});
  Write(executor, *graph, "w", ScaledIdentity(2, 3));
  executor.Run(Phase::kForward);
  EXPECT_EQ(Read(executor, *graph, "y"), (std::vector<float>{3, 6}));
  EXPECT_EQ(Read(executor, *graph, "z"), (std::vector<float>{0, 0}));
  executor.Run(Phase::kBackward);
  EXPECT_EQ(Read(executor, *graph, "z"), (std::vector<float>{9, 18}));
}

TEST(Executor, KeepsWhatBeginMadeThroughEveryMicroBatch) {
  const auto graph = ParseText(
      "graph (float[2,2] x, float[2,2] t) => (float[2,2] y)\nparameter float[2,2] w\n"
      "{ phase begin table = Linear(t, w)\n"
      "  phase forward a = MatMul(x, table) b = Linear(a, w) c = Linear(b, w) y = Linear(c, w) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan, {.poison = true});
  Write(executor, *graph, "t", ScaledIdentity(2, 1));
  Write(executor, *graph, "w", ScaledIdentity(2, 2));
  executor.Run(Phase::kBegin);
  for (float x : {1.0f, 3.0f}) {
    Write(executor, *graph, "x", {x, 0, 0, -x});
    executor.Run(Phase::kForward);
    EXPECT_EQ(Read(executor, *graph, "y"), (std::vector<float>{16 * x, 0, 0, -16 * x}));
  }
}

// What only forward reads is read again after backward has had the arena.
TEST(Executor, KeepsWhatBeginMadeThroughBackwardToo) {
  const auto graph = ParseText(
      "graph (float[2,2] x, float[2,2] t) => (float[2,2] y, float[2,2] z)\nparameter float[2,2] w\n"
      "{ phase begin table = Linear(t, w)\n"
      "  phase forward y = MatMul(x, table)\n"
      "  phase backward a = Linear(y, w) b = Linear(a, w) c = Linear(b, w) z = Linear(c, w) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan, {.poison = true});
  Write(executor, *graph, "t", ScaledIdentity(2, 1));
  Write(executor, *graph, "w", ScaledIdentity(2, 2));
  executor.Run(Phase::kBegin);
  for (float x : {1.0f, 3.0f}) {
    Write(executor, *graph, "x", {x, 0, 0, -x});
    executor.Run(Phase::kForward);
    executor.Run(Phase::kBackward);
    EXPECT_EQ(Read(executor, *graph, "y"), (std::vector<float>{2 * x, 0, 0, -2 * x}));
    EXPECT_EQ(Read(executor, *graph, "z"), (std::vector<float>{32 * x, 0, 0, -32 * x}));
  }
}

TEST(Executor, UpdatesAccumulatorsInPlace) {
  const auto graph = ParseText(
      "graph (float[1,2] x, float[1,3] dy) => ()\ngradient float[3,2] w.grad\n"
      "{ phase backward first = LinearWeightGradient(x, dy, w.grad) second = LinearWeightGradient(x, dy, first) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  EXPECT_EQ(std::ranges::count(plan.buffers, false, [](const auto& b) { return b.term == "workspace"; }), 3);
  EXPECT_EQ(plan.buffer_of.at(graph->FindValue("second")), plan.buffer_of.at(graph->FindValue("w.grad")));
  EXPECT_EQ(plan.ledger.at("grads"), kAlignment);
  Executor executor(plan, {.poison = true});
  Write(executor, *graph, "x", {1, 10});
  Write(executor, *graph, "dy", {1, 2, 3});
  executor.Run(Phase::kBackward);
  executor.Run(Phase::kBackward);
  EXPECT_EQ(Read(executor, *graph, "w.grad"), (std::vector<float>{4, 40, 8, 80, 12, 120}));
}

TEST(Executor, ElementwiseOutputsTakeOverDyingInputsOnly) {
  const auto graph = ParseText(
      "graph (float[2] x) => (float[2] y)\nconstant float[] two = {2}\n"  // IMP-22: a rank-0 tensor
      "{ a = Add(x, two) b = Mul(a, two) c = Add(b, two) d = Add(b, c) y = Mul(d, d) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  const auto buffer = [&](const char* name) { return plan.buffer_of.at(graph->FindValue(name)); };
  EXPECT_NE(buffer("a"), buffer("x"));  // inputs stay
  EXPECT_EQ(buffer("b"), buffer("a"));
  EXPECT_NE(buffer("c"), buffer("b"));  // b is read again
  EXPECT_TRUE(buffer("d") == buffer("b") || buffer("d") == buffer("c"));
  EXPECT_NE(buffer("y"), buffer("d"));  // outputs stay
  Executor executor(plan, {.poison = true});
  Write(executor, *graph, "x", {1, -1});
  for (int round = 0; round < 2; ++round) {
    executor.Run(Phase::kForward);
    EXPECT_EQ(Read(executor, *graph, "y"), (std::vector<float>{196, 36}));  // (4(x+2)+2)^2
  }
}

TEST(Executor, ResultsAndAccumulatorsAreNeverTakenOver) {
  const auto graph = ParseText(
      "graph (float[2] x) => (float[2] a, float[2] z)\ngradient float[2] w.grad\n"
      "{ a = Neg(x) b = Neg(a) z = Add(b, x) sum = Accumulate(w.grad, x) n = Neg(sum) m = Add(n, x) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan, {.poison = true});
  Write(executor, *graph, "x", {1, 2});
  executor.Run(Phase::kForward);
  EXPECT_EQ(Read(executor, *graph, "a"), (std::vector<float>{-1, -2}));
  EXPECT_EQ(Read(executor, *graph, "z"), (std::vector<float>{2, 4}));
  EXPECT_EQ(Read(executor, *graph, "w.grad"), (std::vector<float>{1, 2}));
}

// IMP-23: views share a buffer that lives as long as the last of them; reuse around them does no harm.
TEST(Executor, ViewsShareOneBuffer) {
  const auto graph = ParseText(
      "graph (float[2,3] x) => (float[6] y, float[3,2] z, float[2,3] same)\n"
      "constant int64[1] flat = {6}\nconstant int64[2] turned = {3, 2}\nconstant float[] two = {2}\n"
      "{ a = Mul(x, two) v = Reshape(a, flat) b = Neg(v) c = Abs(b) d = Neg(c) e = Reshape(a, turned)\n"
      "  y = Add(d, v) z = Identity(e) same = Identity(x) }");
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  const auto buffer = [&](const char* name) { return plan.buffer_of.at(graph->FindValue(name)); };
  for (const char* view : {"v", "e", "z"}) EXPECT_EQ(buffer(view), buffer("a")) << view;
  EXPECT_NE(buffer("b"), buffer("a"));
  EXPECT_NE(buffer("same"), buffer("x"));  // a result does not change when its input is fed anew
  Executor executor(plan, {.poison = true});
  Write(executor, *graph, "x", {1, -2, 3, 4, -5, 6});
  executor.Run(Phase::kForward);
  EXPECT_EQ(Read(executor, *graph, "y"), (std::vector<float>{0, -8, 0, 0, -20, 0}));
  EXPECT_EQ(Read(executor, *graph, "z"), (std::vector<float>{2, -4, 6, 8, -10, 12}));
  Write(executor, *graph, "x", {0, 0, 0, 0, 0, 0});
  EXPECT_EQ(Read(executor, *graph, "same"), (std::vector<float>{1, -2, 3, 4, -5, 6}));
}

TEST(MakePlan, RefusesToOverwriteWhatIsReadLater) {
  const auto graph = ParseText(
      "graph (float[1,2] x, float[1,3] dy) => (float[1,3] z)\ngradient float[3,2] w.grad\n"
      "{ sum = LinearWeightGradient(x, dy, w.grad) z = Linear(x, w.grad) }");
  ExpectError(ErrorCode::kInternal,
              "LinearWeightGradient 'sum' overwrites 'w.grad' in place before Linear 'z' reads it",
              [&] { MakePlan(*graph, DeviceKind::kCpu); });
  const auto input = ParseText(
      "graph (float[1,2] x, float[1,3] dy, float[3,2] acc) => ()\n{ sum = LinearWeightGradient(x, dy, acc) }");
  ExpectError(ErrorCode::kInternal, "'acc', which is not its to change",
              [&] { MakePlan(*input, DeviceKind::kCpu); });
}

TEST(MakePlan, ListsEveryMissingKernel) {
  static const OpSchema first{.name = "Nothing", .domain = "test", .doc = "", .min_inputs = 0, .max_inputs = 1};
  static const OpSchema second{.name = "Never", .domain = "test", .doc = "", .min_inputs = 0, .max_inputs = 1};
  Graph graph;
  Value* x = graph.AddInput("x", DType::kFloat32, {2});
  for (const OpSchema* schema : {&first, &second, &first}) {
    Node* node = graph.AddNode(*schema, {x}, {graph.AddValue("y")});
    node->source = schema->name + " '/here'";
  }
  ExpectError(ErrorCode::kUnsupportedOp, "Never: no kernel (1 nodes, first Never '/here')",
              [&] { MakePlan(graph, DeviceKind::kCpu); });
  ExpectError(ErrorCode::kUnsupportedOp, "Nothing: no kernel (2 nodes", [&] { MakePlan(graph, DeviceKind::kCpu); });
}

TEST(MakePlan, RefusesSymbolicShapesAndBackwardEdgesBetweenPhases) {
  const auto symbolic = ParseText(
      "graph (float[batch,4] x, float[4] g) => (float[batch,4] y)\n{ y = RmsNorm(x, g) }");
  ExpectError(ErrorCode::kInvalidShape, "'x' has type float[batch,4]; a plan needs concrete shapes",
              [&] { MakePlan(*symbolic, DeviceKind::kCpu); });
  const auto backwards = ParseText(
      "graph (float[2,4] x, float[4] g) => (float[2,4] y)\n"
      "{ phase backward a = RmsNorm(x, g) phase forward y = RmsNorm(a, g) }");
  ExpectError(ErrorCode::kInternal, "in a later phase than its use", [&] { MakePlan(*backwards, DeviceKind::kCpu); });
}

TEST(Executor, ConvertsConstantsToThePlannedType) {
  const auto graph = ParseText(
      "graph (float[1,2] x) => (float[1,2] y)\n"
      "constant float16[2] half = {0.5, -2}\nconstant bfloat16[2] brain = {0.25, 3}\n"
      "constant double[2] wide = {1.5, 4}\n{ y = RmsNorm(x, half) a = RmsNorm(x, brain) b = RmsNorm(x, wide) }");
  for (const char* name : {"half", "brain", "wide"}) graph->FindValue(name)->dtype = DType::kFloat32;
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan);
  EXPECT_EQ(Read(executor, *graph, "half"), (std::vector<float>{0.5f, -2}));
  EXPECT_EQ(Read(executor, *graph, "brain"), (std::vector<float>{0.25f, 3}));
  EXPECT_EQ(Read(executor, *graph, "wide"), (std::vector<float>{1.5f, 4}));
}

TEST(Executor, NamesFrozenTensorsWithoutBytes) {
  const auto graph = ParseText("graph (float[1,2] x) => (float[1,2] y)\nconstant float[2] g = {1, 2}\n{ y = RmsNorm(x, g) }");
  graph->FindValue("g")->data = nullptr;
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  ExpectError(ErrorCode::kInvalidModel, "frozen tensor 'g'", [&] { Executor executor(plan); });
}

TEST(Executor, LocatesErrorsAtTheNode) {
  const auto graph = ParseText(
      "graph (int64[1,2] ids) => (float[1,2,3] y)\nparameter float[4,3] table\n{ y = Embedding(ids, table) }");
  graph->nodes().front()->source = "Gather '/model/embed'";
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan);
  executor.TensorOf(*graph->FindValue("ids")).data<int64_t>()[1] = 4;
  ExpectError(ErrorCode::kInvalidArgument, "while running Embedding for Gather '/model/embed'", [&] { executor.Run(Phase::kForward); });
}

TEST(Executor, ValuesOutsideThePlanAreAnError) {
  const auto graph = ParseText(kChain);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  Executor executor(plan);
  const Value* stranger = graph->AddValue("stranger");
  ExpectError(ErrorCode::kInternal, "'stranger' has no memory", [&] { executor.TensorOf(*stranger); });
}

TEST(Plan, LedgerSumsToTheArena) {
  const auto graph = ParseText(kChain);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  int64_t sum = 0;
  for (const auto& [term, bytes] : plan.ledger) sum += bytes;
  EXPECT_EQ(sum, plan.arena_bytes);
  EXPECT_EQ(plan.ledger.at("weights"), Aligned(40000));
  EXPECT_EQ(plan.ledger.at("fragmentation"), 0);
  const std::string table = PlanTable(plan);
  EXPECT_NE(table.find("weights 39.2"), std::string::npos) << table;
}

TEST(Plan, JsonHoldsEveryBufferAndStep) {
  const auto graph = ParseText(kChain);
  const Plan plan = MakePlan(*graph, DeviceKind::kCpu);
  const auto json = nlohmann::json::parse(PlanJson(plan));
  EXPECT_EQ(json["arena_bytes"], plan.arena_bytes);
  ASSERT_EQ(json["buffers"].size(), plan.buffers.size());
  EXPECT_EQ(json["buffers"][0]["name"], "x");
  ASSERT_EQ(json["steps"].size(), 5u);
  EXPECT_EQ(json["steps"][4]["op"], "Linear");
  EXPECT_EQ(json["steps"][4]["inputs"][0], plan.buffer_of.at(graph->FindValue("d")));
}

TEST(Plan, ListsBuffersThatNothingReads) {
  EXPECT_TRUE(UnreadBuffers(MakePlan(*ParseText(kChain), DeviceKind::kCpu)).empty());
  const auto graph = ParseText(
      "graph (float[2,4] x, float[4] g, float[9] idle) => (float[2,4] y)\n{ y, rstd = RmsNorm(x, g) }");
  EXPECT_EQ(UnreadBuffers(MakePlan(*graph, DeviceKind::kCpu)), (std::vector<std::string>{"idle", "rstd"}));
}

}  // namespace
}  // namespace weir
