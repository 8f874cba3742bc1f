#include "tests/kernels/head_exchange_harness.h"

#include <algorithm>
#include <random>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/layout.h"
#include "tests/kernels/gpu_ranks.h"
#include "tests/kernels/op_harness.h"

namespace weir {
namespace {

std::vector<std::byte> Encode(const std::vector<double>& values, DType dtype) {
  const std::vector<float> floats(values.begin(), values.end());
  return EncodeFloats(floats, dtype);
}

std::vector<float> Read(const Executor& executor, const Value& value) {
  const int64_t count = NumElements(ToDims(value.shape));
  std::vector<std::byte> bytes(static_cast<size_t>(BytesOf(value.dtype, count)));
  executor.Read(value, bytes.data(), std::ssize(bytes));
  return TensorData::Owned(value.dtype, {count}, std::move(bytes))->AsFloats();
}

void RunRank(const HeadExchangeCase& c, const std::string& op, const PerRank<double>& x, const PerRank<double>& dy, DType dtype,
             std::shared_ptr<Device> device, Communicator& world, HeadExchangeResult& result) {
  Attributes attributes = {{"group", std::string("context")}, {"ranks", c.ranks}, {"piece", c.piece}};
  if (c.sharing > 1) attributes.Set("sharing", c.sharing);
  if (c.deal) attributes.Set("deal", int64_t{1});
  const Dims part = {c.batch, c.tokens, c.heads, c.channels}, heads = {c.batch, c.rows(), c.held(), c.channels};
  const bool to_heads = op == "SequenceToHeads";
  if (!to_heads) attributes.Set("heads", c.heads);
  world.SetLayout({.world = c.ranks, .context_parallel = c.ranks});
  const OpCase one{"", {{.dims = to_heads ? part : heads}}, attributes};
  const auto graph = MakeOpGraph(GetOp(op), one, /*gradient=*/true, /*as_parameters=*/false, {dtype});
  graph->graph.outputs = {graph->node->out(), graph->input_gradients[0]};
  const Plan plan = MakePlan(graph->graph, device->kind());
  Executor executor(plan, {.poison = true, .communicator = &world, .device = device});
  const auto rank = static_cast<size_t>(world.rank());
  const auto write = [&](const Value& value, const std::vector<double>& values) {
    const auto bytes = Encode(values, dtype);
    executor.Write(value, bytes.data(), std::ssize(bytes));
  };
  write(*graph->inputs[0], x[rank]);
  write(*graph->output_gradients[0], dy[rank]);
  executor.Run();
  result.y[rank] = Read(executor, *graph->node->out());
  result.dx[rank] = Read(executor, *graph->input_gradients[0]);
}

}  // namespace

PerRank<double> Draw(const HeadExchangeCase& c, int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  PerRank<double> values(static_cast<size_t>(c.ranks));
  for (auto& rank : values) {
    for (int64_t k = 0; k < size; ++k) rank.push_back(normal(random));
  }
  return values;
}

HeadExchangeResult RunHeadExchange(const HeadExchangeCase& c, const std::string& op, const PerRank<double>& x, const PerRank<double>& dy) {
  HeadExchangeResult result{PerRank<float>(x.size()), PerRank<float>(x.size())};
  RunRanks(c.ranks, [&](Communicator& world) { RunRank(c, op, x, dy, DType::kFloat32, MakeCpuDevice(), world, result); });
  return result;
}

HeadExchangeResult RunHeadExchangeOnGpus(const HeadExchangeCase& c, const std::string& op, const PerRank<double>& x, const PerRank<double>& dy,
                                         DType dtype) {
  HeadExchangeResult result{PerRank<float>(x.size()), PerRank<float>(x.size())};
  RunOnGpus(c.ranks, [&](Communicator& gpus, Device& device) {
    RunRank(c, op, x, dy, dtype, Borrowed(device), gpus, result);
    const auto own = static_cast<size_t>(gpus.rank());
    const auto all = GatherArrays(gpus.host(), {{.dims = {}, .f = result.y[own], .i = {}}, {.dims = {}, .f = result.dx[own], .i = {}}});
    for (size_t r = 0; r < all.size(); ++r) result.y[r] = all[r][0].f, result.dx[r] = all[r][1].f;
  });
  return result;
}

}  // namespace weir
