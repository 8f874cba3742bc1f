#include "tests/kernels/head_harness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/error.h"
#include "graph/layout.h"
#include "graph/vocabulary_share.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

Array<float> Rows(const Array<float>& from, const Share& share) {
  const int64_t width = from.dims[1];
  return Floats({share.size(), width}, {from.f.begin() + share.begin * width, from.f.begin() + share.end * width});
}

void Feed(Executor& executor, const Value& value, const Array<float>& array) {
  if (!array.is_float()) return executor.Write(value, array.i.data(), array.elements() * 8);
  if (value.dtype == DType::kFloat32) return executor.Write(value, array.f.data(), array.elements() * 4);
  std::vector<uint16_t> narrow;
  for (const float v : array.f) narrow.push_back(FloatToBFloat16(v));
  executor.Write(value, narrow.data(), array.elements() * 2);
}

Array<float> Gradient(const Executor& executor, const Value& value) {
  Array<float> array = Array<float>::Floats(ToDims(value.shape));
  if (value.dtype == DType::kFloat32) {
    executor.Read(value, array.f.data(), array.elements() * 4);
    return array;
  }
  std::vector<uint16_t> narrow(array.f.size());
  executor.Read(value, narrow.data(), array.elements() * 2);
  for (size_t i = 0; i < narrow.size(); ++i) array.f[i] = BFloat16ToFloat(narrow[i]);
  return array;
}

HeadResult RunOn(DeviceKind kind, const std::shared_ptr<Device>& device, Communicator* world, const Inputs& in, int outputs,
                 const Attributes& attributes, DType activations) {
  Graph graph;
  std::vector<Value*> inputs, results;
  for (size_t i = 0; i < in.size(); ++i) {
    if (i == 4 && in[i].dims.empty()) {  // no accumulator
      inputs.push_back(nullptr);
      continue;
    }
    inputs.push_back(graph.AddInput(StrCat("x", i), i < 2 ? activations : in[i].dtype, ToShape(in[i].dims)));
    if (i == 4) inputs.back()->role = Role::kGradient;
  }
  for (int i = 0; i < outputs; ++i) results.push_back(graph.AddValue(StrCat("y", i)));
  InferNode(*graph.AddNode(GetOp("RingDtp", "ai.weir"), inputs, results, attributes));
  graph.outputs = results;
  const Plan plan = MakePlan(graph, kind);
  Executor executor(plan, {.poison = true, .communicator = world, .device = device});
  for (size_t i = 0; i < in.size(); ++i) {
    if (inputs[i] != nullptr) Feed(executor, *inputs[i], in[i]);
  }
  executor.Run();
  HeadResult result{.dx = {}, .dw = {}, .arena_bytes = plan.arena_bytes};
  executor.Read(*results[0], &result.loss, sizeof(result.loss));
  if (outputs > 1) result.dx = Gradient(executor, *results[1]);
  if (outputs > 2) result.dw = Gradient(executor, *results[2]);
  return result;
}

bool SameBits(const Array<float>& a, const Array<float>& b) {
  return a.dims == b.dims && (a.f.empty() || std::memcmp(a.f.data(), b.f.data(), a.f.size() * 4) == 0);
}

// Every rank's result.
std::vector<HeadResult> Gathered(Communicator& host, const HeadResult& own) {
  const std::vector<double> losses = host.GatherValues(own.loss, {"Gathered", "losses"});
  std::vector<HeadResult> all;
  for (const auto& arrays : GatherArrays(host, {own.dx, own.dw})) all.push_back({losses[all.size()], arrays[0], arrays[1]});
  return all;
}

}  // namespace

Inputs HeadInputs(const HeadProblem& p, int64_t rank, DType activations) {
  const int64_t n = p.tokens[static_cast<size_t>(rank)];
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < n; ++i) labels.push_back(i % 5 == 4 ? -100 : (i * 7919 + rank * 101) % p.vocabulary);
  const auto seed = static_cast<uint32_t>(rank * 10);
  Inputs in = {Normal({n, p.channels}, seed + 1), Normal({p.vocabulary, p.channels}, 2, 0.5f), Ints({n}, labels),
               Floats({}, {1.0f / 29}), Normal({p.vocabulary, p.channels}, seed + 3)};
  if (p.weighted) {
    in.push_back(Floats({n}, {}));
    for (int64_t i = 0; i < n; ++i) in.back().f.push_back(static_cast<float>((i + rank) % 4 == 3 ? 0 : 1 + (i * 5 + rank) % 7) / 4);
  }
  for (size_t i = 0; i < 2 && activations == DType::kBFloat16; ++i) {
    for (float& value : in[i].f) value = BFloat16ToFloat(FloatToBFloat16(value));
  }
  return in;
}

Inputs ShardedInputs(const HeadProblem& p, const HeadRun& run, int64_t rank, DType activations) {
  Inputs in = HeadInputs(p, rank, activations);
  const Share held = VocabularyShare(p.vocabulary, run.share > 0 ? run.share : p.leaf, run.ranks, rank % run.ranks);
  in[1] = Rows(in[1], held);
  if (run.shard_gradient) in[4] = Rows(in[4], held);
  if (!run.accumulate) in[4] = Absent();
  return in;
}

Attributes HeadAttributes(const HeadProblem& p, const HeadRun& run) {
  Attributes attributes{{"strip", run.strip}, {"vocab_leaf", p.leaf}};
  if (run.ranks == 1) return attributes;
  attributes.Set("group", std::string("vocabulary"));
  attributes.Set("vocab_parallel", run.ranks);
  attributes.Set("vocabulary", p.vocabulary);
  if (run.shard_gradient) attributes.Set("shard_gradient", int64_t{1});
  if (run.move != "weights") attributes.Set("move", run.move);
  if (run.share > 0) attributes.Set("share_columns", run.share);
  return attributes;
}

HeadResult RunHead(const Inputs& inputs, int outputs, const Attributes& attributes, Communicator* world) {
  return RunOn(DeviceKind::kCpu, nullptr, world, inputs, outputs, attributes, DType::kFloat32);
}

std::vector<HeadResult> RunHeads(const HeadProblem& p, const HeadRun& run) {
  std::vector<HeadResult> all(p.tokens.size());
  RunRanks(p.world(), [&](Communicator& world) {
    world.SetLayout({.world = p.world(), .vocabulary_parallel = run.ranks});
    all[static_cast<size_t>(world.rank())] = RunHead(ShardedInputs(p, run, world.rank()), run.outputs, HeadAttributes(p, run), &world);
  });
  return all;
}

std::vector<std::vector<HeadResult>> RunHeadsOnGpus(const HeadProblem& p, const std::vector<HeadRun>& runs, DType activations) {
  for (const HeadRun& run : runs) {  // one layout for all of them
    WEIR_CHECK(run.ranks == 1 || run.ranks == p.world(), ErrorCode::kInternal, "on GPUs the group is the world, not ", run.ranks);
  }
  std::vector<std::vector<HeadResult>> all;
  RunOnGpus(p.world(), [&](Communicator& gpus, Device& device) {
    gpus.SetLayout({.world = p.world(), .vocabulary_parallel = p.world()});
    for (const HeadRun& run : runs) {
      all.push_back(Gathered(gpus.host(), RunOn(DeviceKind::kCuda, Borrowed(device), &gpus, ShardedInputs(p, run, gpus.rank(), activations),
                                                run.outputs, HeadAttributes(p, run), activations)));
    }
  });
  return all;
}

void ExpectSameBits(const std::vector<HeadResult>& got, const std::vector<HeadResult>& want, const std::string& what) {
  for (size_t rank = 0; rank < want.size(); ++rank) {
    EXPECT_EQ(got[rank].loss, want[rank].loss) << what << ", rank " << rank;
    EXPECT_TRUE(SameBits(got[rank].dx, want[rank].dx)) << "dx, " << what << ", rank " << rank;
    EXPECT_TRUE(SameBits(got[rank].dw, want[rank].dw)) << "dW, " << what << ", rank " << rank;
  }
}

void ExpectReference(const HeadProblem& p, const std::vector<HeadResult>& got, DType activations, double loss_tolerance,
                     double gradient_tolerance) {
  for (int64_t rank = 0; rank < p.world(); ++rank) {
    const auto want = RunReference("RingDtp", HeadInputs(p, rank, activations), 3);
    const HeadResult& own = got[static_cast<size_t>(rank)];
    EXPECT_NEAR(own.loss, want[0].f[0], loss_tolerance * want[0].f[0]) << rank;
    const double dx = own.dx.f.empty() ? 0 : RelativeError(own.dx, want[1]);
    EXPECT_LT(dx, gradient_tolerance) << "dx of rank " << rank;
    EXPECT_LT(RelativeError(own.dw, want[2]), gradient_tolerance) << "dW of rank " << rank;
  }
}

}  // namespace weir
