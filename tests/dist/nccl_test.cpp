// NCCL, and copies, between two GPUs of this machine.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "backend/cpu/thread_communicator.h"
#include "backend/cuda_communicator.h"
#include "backend/plan.h"
#include "backend/tree_reduce.h"
#include "graph/layout.h"
#include "graph/op_schema.h"
#include "tests/dist/transfer_cases.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

using std::chrono::milliseconds;

// Both kinds of links.
class GpuLinks : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    setenv("WEIR_LINK", GetParam(), 1);
  }
  void TearDown() override { unsetenv("WEIR_LINK"); }
};
INSTANTIATE_TEST_SUITE_P(Kinds, GpuLinks, testing::Values("nccl", "copies"), [](const auto& info) { return std::string(info.param); });

TEST_P(GpuLinks, Transfers) {
  WEIR_ON_GPUS(2);
  RunOnGpus(2, CheckDeviceTransfers);
}
TEST_P(GpuLinks, KeepsTheOrderOfTheQueues) {
  WEIR_ON_GPUS(2);
  RunOnGpus(2, CheckDeviceOrder);
}
TEST_P(GpuLinks, ExchangesMessages) {
  WEIR_ON_GPUS(2);
  RunOnGpus(2, CheckDeviceMessages);
}
TEST_P(GpuLinks, ExchangesManyMessagesWithAPeer) {
  WEIR_ON_GPUS(2);
  RunOnGpus(2, CheckDeviceManyMessages);
}
TEST_P(GpuLinks, FormsGroups) {
  WEIR_ON_GPUS(2);
  RunOnGpus(2, CheckDeviceGroups);
}
TEST_P(GpuLinks, RefusesWrongUse) {
  WEIR_ON_GPUS(2);
  RunOnGpus(2, CheckDeviceWrongUse);
}

// More bytes than 32 bits count; the places beyond are looked at.
TEST_P(GpuLinks, MovesMoreThanTwoGigabytes) {
  WEIR_ON_GPUS(2);
  constexpr int64_t kBytes = (int64_t{1} << 32) + 12345;
  RunOnGpus(2, [](Communicator& gpus, Device& device) {
    std::byte* from = device.Allocate(kBytes);
    std::byte* to = device.Allocate(kBytes);
    device.Fill(from, static_cast<int>(3 + gpus.rank()), kBytes);
    device.Fill(from + kBytes - 5, static_cast<int>(90 + gpus.rank()), 5);
    const int64_t peer = 1 - gpus.rank();
    const Communicator::Outgoing out{peer, {from, static_cast<size_t>(kBytes)}};
    const Communicator::Incoming in{peer, {to, static_cast<size_t>(kBytes)}};
    gpus.Wait(gpus.StartExchange({&out, 1}, {&in, 1}, {"Exchange", "long"}));
    for (const int64_t at : {int64_t{0}, (int64_t{1} << 31) + 1, kBytes - 6, kBytes - 5, kBytes - 1}) {
      std::byte got{};
      device.Download(&got, to + at, 1);
      EXPECT_EQ(static_cast<int64_t>(got), (at < kBytes - 5 ? 3 : 90) + peer) << at;
    }
    device.Free(from, kBytes);
    device.Free(to, kBytes);
  });
}

TEST_P(GpuLinks, RefusesMemoryOfTheHost) {
  WEIR_ON_GPUS(2);
  EXPECT_THROW(RunOnGpus(2, [](Communicator& gpus, Device&) { gpus.GatherValues(int64_t{1}, {"Gather", "counts"}); }), Error);
}

TEST(Nccl, RefusesTwoRanksOnOneGpu) {
  WEIR_NEEDS_GPUS(1);
  try {
    RunRanks(2, [](Communicator& host) {
      const auto device = MakeCudaDevice(0);
      MakeNcclCommunicator(host, *device);
    });
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("ranks 0 and 1 run on the same GPU"), std::string::npos) << error.what();
  }
}

// What this rank, one of two, ended with.
struct Ended {
  int64_t rank = 0;
  std::string text;
  double seconds = 0;
};

Ended EndOfOwn(const GpuRank& rank, milliseconds timeout) {
  Ended end;
  EXPECT_THROW(RunOnGpus(2,
                         [&](Communicator& gpus, Device& device) {
                           const auto start = std::chrono::steady_clock::now();
                           try {
                             rank(gpus, device);
                           } catch (const Error& error) {
                             const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
                             end = {gpus.rank(), error.what(), elapsed.count()};
                             throw;
                           }
                         },
                         timeout),
               Error);
  return end;
}

// Rank 0's GPU waits in an exchange that rank 1 starts once only.
void WaitInVain(Communicator& gpus, Device& device) {
  std::byte* bytes = device.Allocate(64);
  for (int64_t times = 0; times < 2 - gpus.rank(); ++times) {
    gpus.AllGather({bytes + 32 * gpus.rank(), 32}, {bytes, 64}, {"AllGather", "layer 3"});
  }
  device.Synchronize();
  device.Free(bytes, 64);
  gpus.ThrowIfAborted();
}

TEST_P(GpuLinks, AnAbortOnOneRankFreesTheOthersGpu) {
  WEIR_ON_GPUS(2);
  const Ended end = EndOfOwn([](Communicator& gpus, Device& device) {
    WaitInVain(gpus, device);
    if (gpus.rank() == 1) throw Error(ErrorCode::kIoError, "the disk of rank 1 is full");
  }, milliseconds(60000));
  EXPECT_LT(end.seconds, 8);
  EXPECT_NE(end.text.find("the disk of rank 1 is full"), std::string::npos) << end.text;
}

TEST_P(GpuLinks, ATransferThatNeverEndsIsNamed) {
  WEIR_ON_GPUS(2);
  const Ended end = EndOfOwn([](Communicator& gpus, Device& device) {
    WaitInVain(gpus, device);
    for (;;) gpus.ThrowIfAborted();
  }, milliseconds(1000));
  EXPECT_LT(end.seconds, 8);
  const char* told = end.rank == 0 ? "AllGather of 'layer 3' (world, 128 bytes) is not over after 1 s" : "rank 0 failed";
  EXPECT_NE(end.text.find(told), std::string::npos) << end.text;
}

// Bytes that only one of the two speaks of would never come.
TEST_P(GpuLinks, AMessageThatIsNeverSentIsNamed) {
  WEIR_ON_GPUS(2);
  const Ended end = EndOfOwn([](Communicator& gpus, Device& device) {
    std::byte* bytes = device.Allocate(64);
    const Communicator::Outgoing out{1 - gpus.rank(), {bytes, 32}};
    const Communicator::Incoming in{1 - gpus.rank(), {bytes + 32, 32}};
    const std::span<const Communicator::Outgoing> sends(&out, gpus.rank() == 0 ? 1 : 0);
    gpus.Wait(gpus.StartExchange(sends, {&in, 1}, {"Exchange", "one way"}));
  }, milliseconds(60000));
  EXPECT_LT(end.seconds, 8);
  EXPECT_NE(end.text.find("'one way' (world): rank"), std::string::npos) << end.text;
  EXPECT_NE(end.text.find("expects 32 bytes from rank"), std::string::npos) << end.text;
}

Value* AddGradient(Graph& graph, const char* name, int64_t count) {
  Value* gradient = graph.AddValue(name, Role::kGradient);
  gradient->dtype = DType::kFloat32;
  gradient->shape = {Dim(count)};
  gradient->has_shape = true;
  return gradient;
}

Value* AddOp(Graph& graph, std::string_view op, const std::vector<Value*>& inputs, const Attributes& attributes) {
  Node* node = graph.AddNode(GetOp(op), inputs, {graph.AddValue("result")});
  node->attributes = attributes;
  InferNode(*node);
  graph.outputs = {node->outputs[0]};
  return node->outputs[0];
}

std::vector<float> Addends(int64_t rank, int64_t count) {
  std::mt19937 random(static_cast<uint32_t>(7 + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = std::ldexp(normal(random), static_cast<int>(random() % 20));
  return values;
}

// The same cases on CPU ranks tell whether the test itself is right.
void OnDevices(DeviceKind kind, const Layout& layout, const std::function<void(Communicator& host, const ExecutorOptions&)>& rank) {
  RunOnHosts(kind, 2, [&](Communicator& host) {
    host.SetLayout(layout);
    const bool cuda = kind == DeviceKind::kCuda;
    const auto device = cuda ? MakeCudaDevice(static_cast<int>(host.rank())) : MakeCpuDevice();
    const auto gpus = cuda ? MakeNcclCommunicator(host, *device) : nullptr;
    rank(host, {.communicator = cuda ? gpus.get() : &host, .device = device});
    host.Barrier({"Barrier", "end"});
  });
}

// `staging` elements of memory handed in: the sum runs beside the compute queue and is joined.
void CheckTreeReduceGradient(DeviceKind kind, int64_t count, int64_t piece, int64_t staging = 0) {
  Graph graph;
  Attributes attributes = {{"ranks", int64_t{2}}, {"group", std::string("world")}};
  if (piece > 0) attributes.Set("piece", piece);
  Value* gradient = AddGradient(graph, "x.grad", count);
  Value* result = staging > 0 ? nullptr : AddOp(graph, "TreeReduceGradient", {gradient}, attributes);
  if (staging > 0) {
    attributes.Set("staging", staging);
    Node* sum = graph.AddNode(GetOp("TreeReduceGradient"), {gradient}, {graph.AddValue("begun"), graph.AddValue("staging")}, attributes);
    InferNode(*sum);
    result = AddOp(graph, "TreeReduceJoin", {sum->out(), sum->out(1)}, {{"ranks", int64_t{2}}, {"group", std::string("world")}});
  }
  const Plan plan = MakePlan(graph, kind);
  const std::vector<float> addends[] = {Addends(0, count), Addends(1, count)};
  OnDevices(kind, {.world = 2}, [&](Communicator& host, const ExecutorOptions& options) {
    Executor executor(plan, options);
    std::vector<float> sum(static_cast<size_t>(count));
    executor.Write(*gradient, addends[host.rank()].data(), count * 4);
    executor.Run();
    executor.Read(*result, sum.data(), count * 4);
    int64_t wrong = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const float expected = addends[0][i] + addends[1][i];
      wrong += std::memcmp(&sum[i], &expected, sizeof(float)) != 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << count << " elements, piece " << piece << ", rank " << host.rank();
  });
}

// One gradient that both ranks hold and a shard of each: sqrt(5 * 2^2 + 3 * 4^2 + 70000 * 1^2) on both.
void CheckGradientNorm(DeviceKind kind) {
  OnDevices(kind, {.world = 2, .expert_parallel = 2}, [&](Communicator& host, const ExecutorOptions& options) {
    const int64_t rows = host.rank() == 0 ? 3 : 70000;
    Graph graph;
    const std::vector<Value*> gradients = {AddGradient(graph, "a.grad", 5), AddGradient(graph, "b.grad", rows)};
    const Value* norm = AddOp(graph, "GradientNorm", gradients,
                              {{"sharded", std::vector<int64_t>{1}}, {"group", std::string("expert")}, {"ranks", int64_t{2}}});
    const Plan plan = MakePlan(graph, kind);
    Executor executor(plan, options);
    const std::vector<float> a(5, 2.0f), b(static_cast<size_t>(rows), host.rank() == 0 ? 4.0f : 1.0f);
    executor.Write(*gradients[0], a.data(), 20);
    executor.Write(*gradients[1], b.data(), rows * 4);
    executor.Run();
    double got = 0;
    executor.Read(*norm, &got, sizeof(got));
    EXPECT_EQ(got, std::sqrt(5 * 4.0 + 3 * 16.0 + 70000.0)) << "rank " << host.rank();
  });
}

// Runs `graph` on both ranks; `inputs` and `expected` of a rank.
void CheckOnBoth(DeviceKind kind, const Graph& graph, const Value& input, const Value& output, const std::vector<float> (&inputs)[2],
                 const std::function<std::vector<std::byte>(int64_t rank)>& expected, const std::string& what) {
  const Plan plan = MakePlan(graph, kind);
  OnDevices(kind, {.world = 2}, [&](Communicator& host, const ExecutorOptions& options) {
    Executor executor(plan, options);
    const auto& own = inputs[host.rank()];
    const std::vector<std::byte> want = expected(host.rank());
    std::vector<std::byte> got(want.size());
    for (int again = 0; again < 2; ++again) {
      executor.Write(input, own.data(), std::ssize(own) * 4);
      executor.Run();
      executor.Read(output, got.data(), std::ssize(got));
      EXPECT_TRUE(got == want) << what << ", rank " << host.rank();
    }
  });
}

// Each rank runs the graph of its share, [rows * columns] of it, so both are planned; here shares are equal.
void CheckReduceRows(DeviceKind kind, int64_t rows, int64_t columns, int64_t staging) {
  Graph graph;
  Value *whole = AddGradient(graph, "w.whole", rows * columns), *own = AddGradient(graph, "w.grad", rows * columns / 2);
  whole->shape = {Dim(rows), Dim(columns)};
  own->shape = {Dim(rows / 2), Dim(columns)};
  Attributes group = {{"ranks", int64_t{2}}, {"group", std::string("world")}, {"event", int64_t{3}}};
  Attributes attributes = group;
  attributes.Set("staging", staging);
  Node* sum = graph.AddNode(GetOp("ReduceRows"), {whole, own}, {graph.AddValue("rows"), graph.AddValue("staging")}, attributes);
  InferNode(*sum);
  const Value* result = AddOp(graph, "JoinBeside", {sum->out(), whole, sum->out(1)}, group);
  const std::vector<float> addends[] = {Addends(0, rows * columns), Addends(1, rows * columns)};
  const auto expected = [&](int64_t rank) {
    std::vector<float> sums;
    for (size_t i = 0; i < static_cast<size_t>(rows * columns / 2); ++i) {
      const size_t at = i + static_cast<size_t>(rank * rows * columns / 2);
      sums.push_back(addends[0][at] + addends[1][at]);
    }
    const auto bytes = std::as_bytes(std::span(sums));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  CheckOnBoth(kind, graph, *whole, *result, addends, expected, StrCat(rows, " rows of ", columns, ", staging ", staging));
}

// Rows that come beside other work, then are doubled on the compute queue.
void CheckGatherBeside(DeviceKind kind, int64_t count) {
  Graph graph;
  Value* own = AddGradient(graph, "w", count);
  Attributes group = {{"ranks", int64_t{2}}, {"group", std::string("world")}, {"event", int64_t{0}}};
  Attributes attributes = group;
  attributes.Set("rows", 2 * count);
  Value* coming = AddOp(graph, "AllGatherRows", {own}, attributes);
  Value* whole = AddOp(graph, "JoinBeside", {coming}, group);
  const Value* result = AddOp(graph, "Add", {whole, whole}, {});
  const std::vector<float> shards[] = {Addends(0, count), Addends(1, count)};
  const auto expected = [&](int64_t) {
    std::vector<float> doubled;
    for (const auto& shard : shards) {
      for (const float value : shard) doubled.push_back(value + value);
    }
    const auto bytes = std::as_bytes(std::span(doubled));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  CheckOnBoth(kind, graph, *own, *result, shards, expected, StrCat(count, " elements"));
}

// The sums of the blocks of a whole, of integers: exact in any order, so that what counts is which elements a block has. Then of any
// numbers: the bits that one holder of the whole has.
void CheckSquaresOfWhole(DeviceKind kind, int64_t first, int64_t second) {
  constexpr int64_t kBlock = int64_t{1} << 16;
  for (const bool integers : {true, false}) {
    std::vector<float> all(static_cast<size_t>(first + second));
    const std::vector<float> any = Addends(0, first + second);
    for (size_t i = 0; i < all.size(); ++i) all[i] = integers ? static_cast<float>(i % 1000) : any[i];
    std::vector<double> sums(static_cast<size_t>(DivCeil(first + second, kBlock)));
    for (size_t i = 0; i < all.size(); ++i) sums[i / kBlock] += static_cast<double>(all[i]) * static_cast<double>(all[i]);
    OnDevices(kind, {.world = 2}, [&](Communicator& host, const ExecutorOptions& options) {
      const auto squares = [&](std::span<const float> own, const Attributes& attributes) {
        Graph graph;
        const Value* x = AddGradient(graph, "w.grad", std::ssize(own));
        const Value* result = AddOp(graph, "BlockSquares", {graph.FindValue("w.grad")}, attributes);
        const Plan plan = MakePlan(graph, kind);
        Executor executor(plan, options);
        std::vector<double> got(static_cast<size_t>(NumElements(ToDims(result->shape))));
        executor.Write(*x, own.data(), std::ssize(own) * 4);
        executor.Run();
        executor.Read(*result, got.data(), std::ssize(got) * 8);
        return got;
      };
      const std::span<const float> whole(all), own = host.rank() == 0 ? whole.first(static_cast<size_t>(first)) : whole.subspan(static_cast<size_t>(first));
      const auto got = squares(own, {{"group", std::string("world")}, {"elements", std::vector<int64_t>{first, second}}, {"whole", int64_t{1}}});
      EXPECT_EQ(got, integers ? sums : squares(whole, {})) << first << " and " << second << ", rank " << host.rank();
    });
  }
}

constexpr int64_t kRowCases[][3] = {{2, 1, 4}, {6, 5, 4}, {1000, 77, 4096}, {4096, 1024, 1 << 20}};
constexpr std::pair<int64_t, int64_t> kShards[] = {{1, 1}, {65536, 65536}, {65535, 70000}, {3, 200001}, {200001, 3}, {70000, 70000}, {65540, 400000}, {0, 9}, {9, 0}};

void CheckShards(DeviceKind kind) {
  for (const auto& [rows, columns, staging] : kRowCases) CheckReduceRows(kind, rows, columns, staging);
  for (const int64_t count : {1, 1000, 300000}) CheckGatherBeside(kind, count);
  for (const auto& [first, second] : kShards) CheckSquaresOfWhole(kind, first, second);
}

constexpr std::pair<int64_t, int64_t> kStaged[] = {{1, 4}, {7, 4}, {100003, 4096}, {20000001, 1 << 22}};
constexpr std::pair<int64_t, int64_t> kSums[] = {{0, 0}, {1, 0}, {7, 1}, {100003, 999}, {100003, 0}, {20000001, 0}};

TEST_P(GpuLinks, TreeReduceGradientHasTheBitsOfTheAdditions) {
  WEIR_ON_GPUS(2);
  for (const auto& [count, piece] : kSums) CheckTreeReduceGradient(DeviceKind::kCuda, count, piece);
}
TEST_P(GpuLinks, TreeReduceGradientHasThemBesideTheComputeQueue) {
  WEIR_ON_GPUS(2);
  for (const auto& [count, staging] : kStaged) CheckTreeReduceGradient(DeviceKind::kCuda, count, 0, staging);
}
TEST_P(GpuLinks, GradientNormAddsTheShardsOfAllRanks) {
  WEIR_ON_GPUS(2);
  CheckGradientNorm(DeviceKind::kCuda);
}
TEST_P(GpuLinks, ShardsAreGatheredSummedAndMeasuredBesideTheComputeQueue) {
  WEIR_ON_GPUS(2);
  CheckShards(DeviceKind::kCuda);
}
TEST(CpuRanks, DoTheSame) {
  CheckShards(DeviceKind::kCpu);
  for (const auto& [count, piece] : kSums) CheckTreeReduceGradient(DeviceKind::kCpu, std::min<int64_t>(count, 100003), piece);
  for (const auto& [count, staging] : kStaged) CheckTreeReduceGradient(DeviceKind::kCpu, std::min<int64_t>(count, 100003), 0, staging);
  CheckGradientNorm(DeviceKind::kCpu);
}

// Needs no GPU: what a round needs is planned.
TEST(CudaPlans, TreeReduceGradientHoldsTwoRoundsOfAllRanks) {
  for (const auto& [count, bytes] : {std::pair<int64_t, int64_t>{7, 2 * 2 * 4 * 4}, {int64_t{1} << 26, int64_t{2} * (16 << 20) * 2 * 4}}) {
    Graph graph;
    AddOp(graph, "TreeReduceGradient", {AddGradient(graph, "x.grad", count)}, {{"ranks", int64_t{2}}});
    const Node& node = *graph.outputs[0]->producer;
    EXPECT_EQ(FindKernel(DeviceKind::kCuda, *node.schema)->workspace_bytes(node), bytes) << count;
  }
}

}  // namespace
}  // namespace weir
