#include "tests/kernels/dispatch_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/thread_communicator.h"
#include "backend/plan.h"
#include "graph/layout.h"
#include "kernels/common/reference_kernel.h"
#include "kernels/llep/plan.h"
#include "tests/kernels/gpu_ranks.h"

namespace weir {
namespace {

// Passes everything on and notes what it saw.
class MeteredCommunicator : public Communicator {
 public:
  MeteredCommunicator(Communicator& inner, Traffic& traffic, int64_t h)
      : inner_(inner), traffic_(traffic), h_(h) {}
  int64_t rank() const override { return inner_.rank(); }
  int64_t size() const override { return inner_.size(); }
  int64_t GlobalRank(int64_t member) const override { return inner_.GlobalRank(member); }
  Ticket StartExchange(std::span<const Outgoing> send, std::span<const Incoming> receive,
                       const CollectiveName& name) override {
    int64_t bytes = 0;
    for (const Incoming& in : receive) bytes += std::ssize(in.bytes);
    if (name.op == "DispatchRows") {
      traffic_.most_rows = std::max(traffic_.most_rows, bytes / (h_ * 4));
    }
    Note(name);
    return inner_.StartExchange(send, receive, name);
  }
  Ticket StartSend(int64_t peer, int64_t tag, std::span<const std::byte> bytes,
                   const CollectiveName& name) override {
    ++traffic_.calls[std::string(name.op)];
    return inner_.StartSend(peer, tag, bytes, name);
  }
  Ticket StartReceive(int64_t peer, int64_t tag, std::span<std::byte> bytes,
                      const CollectiveName& name) override {
    return inner_.StartReceive(peer, tag, bytes, name);
  }
  void Wait(Ticket ticket) override {
    inner_.Wait(std::move(ticket));
    traffic_.order.push_back("wait");
  }
  void Abort(std::string_view reason) noexcept override { inner_.Abort(reason); }
  void ThrowIfAborted() const override { inner_.ThrowIfAborted(); }
  void SetLayout(const Layout& layout) override { inner_.SetLayout(layout); }
  Communicator& Group(std::string_view name) override {
    groups_.push_back(std::make_unique<MeteredCommunicator>(inner_.Group(name), traffic_, h_));
    return *groups_.back();
  }

 private:
  void Note(const CollectiveName& name) {
    ++traffic_.calls[std::string(name.op)];
    traffic_.order.emplace_back(name.op);
  }
  Communicator& inner_;
  Traffic& traffic_;
  int64_t h_;
  std::vector<std::unique_ptr<MeteredCommunicator>> groups_;
};

Array<float> Rows(const Array<float>& from, int64_t first, int64_t count) {
  Dims dims = from.dims;
  const int64_t width = dims[0] == 0 ? 0 : from.elements() / dims[0];
  dims[0] = count;
  return Floats(dims, {from.f.begin() + first * width, from.f.begin() + (first + count) * width});
}

// Inputs 3..6 of Experts for experts [first, first + count).
Inputs Weights(const DispatchProblem& p, int64_t first, int64_t count) {
  Inputs weights = {Rows(p.gate_up, first, count), Rows(p.down, first, count)};
  if (!p.bias) return weights;
  weights.push_back(Rows(p.gate_up_bias, first, count));
  weights.push_back(Rows(p.down_bias, first, count));
  return weights;
}

// Floats of an activation are rounded to the type it has.
Array<float> ReadValue(const Executor& executor, const Value& value) {
  Tensor tensor{.bytes = nullptr, .dtype = value.dtype, .dims = ToDims(value.shape)};
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.size_bytes()));
  tensor.bytes = bytes.data();
  executor.Read(value, bytes.data(), std::ssize(bytes));
  Array<float> array = ReadArray(tensor);
  if (array.is_float()) array.dtype = DType::kFloat32;
  return array;
}

void WriteValue(Executor& executor, const Value& value, Array<float> array) {
  array.dtype = value.dtype;
  const TensorDataPtr data = ToTensorData(array);
  executor.Write(value, data->bytes().data(), std::ssize(data->bytes()));
}

// The two nodes of one rank.
struct RankGraph {
  Graph graph;
  std::vector<std::pair<Value*, Array<float>>> feeds;
  Value *y, *counts;
  std::vector<Value*> out;  // of the gradient; absent ones are null

  RankGraph(const DispatchProblem& p, const Attributes& attributes, size_t rank,
            const Inputs& weights, float start, DType activations);

 private:
  Value* Input(const std::string& name, const Array<float>& array, DType dtype,
               Role role = Role::kInput) {
    Value* value = graph.AddInput(name, dtype, ToShape(array.dims));
    value->role = role;
    feeds.push_back({value, array});
    return value;
  }
};

RankGraph::RankGraph(const DispatchProblem& p, const Attributes& attributes, size_t rank,
                     const Inputs& weights, float start, DType activations) {
  const DispatchProblem::Rank& own = p.ranks[rank];
  std::vector<Value*> in = {Input("x", own.x, activations), Input("ids", own.ids, DType::kInt64),
                            Input("weights", own.weights, DType::kFloat32)};
  const std::string names[] = {"gate_up", "down", "gate_up_bias", "down_bias"};
  for (size_t w = 0; w < 4; ++w) {
    const DType dtype = w < 2 ? activations : DType::kFloat32;
    in.push_back(w < weights.size() ? Input(names[w], weights[w], dtype) : nullptr);
  }
  std::vector<Value*> forward_inputs = in;
  while (forward_inputs.back() == nullptr) forward_inputs.pop_back();
  y = graph.AddValue("y");
  counts = graph.AddValue("counts");
  InferNode(*graph.AddNode(GetOp("PipelinedLlep"), forward_inputs, {y, counts}, attributes));
  in.push_back(Input("dy", own.dy, activations));
  out = {graph.AddValue("dx"), graph.AddValue("dweights")};
  for (size_t w = 0; w < 4; ++w) {
    const bool has = w < weights.size();
    in.push_back(has ? Input(names[w] + ".grad", Array<float>::Floats(weights[w].dims, start),
                             DType::kFloat32, Role::kGradient)
                     : nullptr);
    out.push_back(has ? graph.AddValue(names[w] + ".sum") : nullptr);
  }
  in.push_back(counts);
  InferNode(*graph.AddNode(GetOp("PipelinedLlepGradient"), in, out, attributes));
  graph.outputs = {y, counts};
  for (Value* value : out) {
    if (value != nullptr) graph.outputs.push_back(value);
  }
}

DispatchResult RunRank(const RankGraph& g, DeviceKind kind, const std::shared_ptr<Device>& device,
                       Communicator* communicator) {
  const Plan plan = MakePlan(g.graph, kind);
  Executor executor(plan, {.poison = true, .communicator = communicator, .device = device});
  for (const auto& [value, array] : g.feeds) WriteValue(executor, *value, array);
  executor.Run();
  executor.Synchronize();
  if (communicator != nullptr) communicator->ThrowIfAborted();
  DispatchResult result{ReadValue(executor, *g.y),
                        ReadValue(executor, *g.counts),
                        ReadValue(executor, *g.out[0]),
                        ReadValue(executor, *g.out[1]),
                        {}};
  for (size_t o = 2; o < g.out.size(); ++o) {
    if (g.out[o] != nullptr) result.gradients.push_back(ReadValue(executor, *g.out[o]));
  }
  return result;
}

// All ranks' tokens behind each other, every rank filled up to `each` tokens that route to expert
// E.
struct Joined {
  Inputs forward, dy;
  std::vector<int64_t> place;  // of each token, rank by rank
};

// Token j*G + l of rank s goes to row (s*m + j)*G + l, m = leaf tokens: leaf l holds the ranks in
// order.
Joined Join(const DispatchProblem& p, bool filled) {
  const int64_t m = DivCeil(p.max_tokens(), p.leaves), ranks = std::ssize(p.ranks);
  int64_t total = 0;
  Joined joined;
  for (int64_t s = 0; s < ranks; ++s) {
    for (int64_t t = 0; t < p.tokens(static_cast<size_t>(s)); ++t) {
      joined.place.push_back(filled ? (s * m + t / p.leaves) * p.leaves + t % p.leaves : total + t);
    }
    total += p.tokens(static_cast<size_t>(s));
  }
  const int64_t n = filled ? ranks * m * p.leaves : total;
  Array<float> x = Array<float>::Floats({n, p.h}), dy = x, weights = Array<float>::Floats({n, p.k}),
               ids = Array<float>::Ints({n, p.k});
  ids.i.assign(ids.i.size(), p.e);
  auto place = joined.place.begin();
  for (const auto& rank : p.ranks) {
    for (int64_t t = 0; t < rank.x.dims[0]; ++t, ++place) {
      std::copy_n(rank.x.f.begin() + t * p.h, p.h, x.f.begin() + *place * p.h);
      std::copy_n(rank.dy.f.begin() + t * p.h, p.h, dy.f.begin() + *place * p.h);
      std::copy_n(rank.weights.f.begin() + t * p.k, p.k, weights.f.begin() + *place * p.k);
      std::copy_n(rank.ids.i.begin() + t * p.k, p.k, ids.i.begin() + *place * p.k);
    }
  }
  joined.forward = {x, ids, weights};
  joined.dy = {dy};
  return joined;
}

// Cuts joined results into each rank's tokens and experts.
template <class T>
std::vector<DispatchResult> Cut(const DispatchProblem& p, const Joined& joined, const Array<T>& y,
                                const std::vector<Array<T>>& gradient) {
  std::vector<DispatchResult> results;
  const LlepKnobs knobs{.experts = p.e, .ranks = std::ssize(p.ranks)};
  auto place = joined.place.begin();
  for (size_t s = 0; s < p.ranks.size(); ++s) {
    DispatchResult result;
    const auto rows = [&](const Array<T>& from, int64_t width) {
      Array<float> array = Array<float>::Floats({p.tokens(s), width});
      for (int64_t t = 0; t < p.tokens(s); ++t) {
        std::copy_n(from.f.begin() + place[t] * width, width, array.f.begin() + t * width);
      }
      return array;
    };
    result.y = rows(y, p.h);
    result.dx = rows(gradient[0], p.h);
    result.dweights = rows(gradient[1], p.k);
    place += p.tokens(s);
    const int64_t first = knobs.FirstExpert(static_cast<int64_t>(s));
    const int64_t count = knobs.FirstExpert(static_cast<int64_t>(s) + 1) - first;
    for (size_t w = 2; w < gradient.size(); ++w) {
      Array<float> all = Floats(gradient[w].dims, {gradient[w].f.begin(), gradient[w].f.end()});
      result.gradients.push_back(Rows(all, first, count));
    }
    results.push_back(std::move(result));
  }
  return results;
}

DispatchProblem WithOneMoreExpert(DispatchProblem p) {
  for (Array<float>* w : {&p.gate_up, &p.down, &p.gate_up_bias, &p.down_bias}) {
    if (w->dims.empty() || w->dims[0] == 0) continue;
    w->f.resize(w->f.size() + w->f.size() / static_cast<size_t>(w->dims[0]));
    ++w->dims[0];
  }
  return p;
}

// Forward inputs, then those of the gradient.
std::pair<Inputs, Inputs> TwinInputs(const DispatchProblem& p, const Joined& joined,
                                     int64_t experts, float start) {
  const Inputs weights = Weights(p, 0, experts);
  Inputs forward = joined.forward;
  forward.insert(forward.end(), weights.begin(), weights.end());
  Inputs backward = forward;
  backward.resize(7, Absent());
  backward.push_back(joined.dy[0]);
  for (const Array<float>& w : weights) backward.push_back(Array<float>::Floats(w.dims, start));
  return {forward, backward};
}

}  // namespace

int64_t DispatchProblem::max_tokens() const {
  int64_t most = 0;
  for (const Rank& rank : ranks) most = std::max(most, rank.x.dims[0]);
  return most;
}

DispatchProblem MakeProblem(DispatchProblem p, const std::vector<int64_t>& tokens,
                            const Routing& routing) {
  const auto scale = [](int64_t width) { return 1 / std::sqrt(static_cast<float>(width)); };
  p.gate_up = Normal({p.e, 2 * p.i, p.h}, 3, scale(p.h));
  p.down = Normal({p.e, p.h, p.i}, 4, scale(p.i));
  p.gate_up_bias = Normal({p.e, 2 * p.i}, 5);
  p.down_bias = Normal({p.e, p.h}, 6);
  for (size_t s = 0; s < tokens.size(); ++s) {
    const int64_t n = tokens[s];
    const auto seed = static_cast<uint32_t>(10 * s);
    std::vector<int64_t> ids;
    for (int64_t route = 0; route < n * p.k; ++route) {
      ids.push_back(routing(static_cast<int64_t>(s), route / p.k, route % p.k));
    }
    p.ranks.push_back({Normal({n, p.h}, seed + 17), Ints({n, p.k}, ids),
                       Normal({n, p.k}, seed + 18), Normal({n, p.h}, seed + 19)});
  }
  return p;
}

namespace {

Attributes AttributesOf(const DispatchProblem& p, const Attributes& knobs) {
  const int64_t ranks = std::ssize(p.ranks);
  Attributes attributes = {{"experts", p.e},
                           {"expert_parallel", ranks},
                           {"leaves", p.leaves},
                           {"unit_rows", p.unit_rows},
                           {"max_tokens", p.max_tokens()}};
  if (ranks > 1) attributes.Set("group", std::string("expert"));
  for (const auto& [name, value] : knobs) attributes.Set(name, value);
  return attributes;
}

RankGraph GraphOf(const DispatchProblem& p, const Attributes& knobs, size_t rank, float start,
                  DType activations = DType::kFloat32) {
  const LlepKnobs split{.experts = p.e, .ranks = std::ssize(p.ranks)};
  const int64_t first = split.FirstExpert(static_cast<int64_t>(rank));
  const int64_t end = split.FirstExpert(static_cast<int64_t>(rank) + 1);
  return RankGraph(p, AttributesOf(p, knobs), rank, Weights(p, first, end - first), start,
                   activations);
}

// Every rank's result.
std::vector<DispatchResult> Gathered(Communicator& host, const DispatchResult& own) {
  std::vector<Array<float>> arrays = {own.y, own.counts, own.dx, own.dweights};
  arrays.insert(arrays.end(), own.gradients.begin(), own.gradients.end());
  std::vector<DispatchResult> all;
  for (const auto& a : GatherArrays(host, arrays)) all.push_back({a[0], a[1], a[2], a[3], {a.begin() + 4, a.end()}});
  return all;
}

}  // namespace

DispatchRun RunDispatch(const DispatchProblem& p, const Attributes& knobs, float start) {
  const int64_t ranks = std::ssize(p.ranks);
  DispatchRun run;
  run.ranks.resize(p.ranks.size());
  run.traffic.resize(p.ranks.size());
  if (ranks == 1) {
    run.ranks[0] = RunRank(GraphOf(p, knobs, 0, start), DeviceKind::kCpu, nullptr, nullptr);
    return run;
  }
  RunRanks(
      ranks,
      [&](Communicator& world) {
        const auto rank = static_cast<size_t>(world.rank());
        world.SetLayout({.world = ranks, .expert_parallel = ranks});
        MeteredCommunicator metered(world, run.traffic[rank], p.h);
        run.ranks[rank] =
            RunRank(GraphOf(p, knobs, rank, start), DeviceKind::kCpu, nullptr, &metered);
      },
      std::chrono::seconds(20));
  return run;
}

std::vector<std::vector<DispatchResult>> RunDispatchOnGpus(const DispatchProblem& p,
                                                           const std::vector<Attributes>& knobs,
                                                           float start, DType activations) {
  const int64_t ranks = std::ssize(p.ranks);
  std::vector<std::vector<DispatchResult>> runs;
  RunOnGpus(ranks, [&](Communicator& gpus, Device& device) {
    gpus.SetLayout({.world = ranks, .expert_parallel = ranks});
    for (const Attributes& run : knobs) {
      const RankGraph graph = GraphOf(p, run, static_cast<size_t>(gpus.rank()), start, activations);
      runs.push_back(Gathered(gpus.host(), RunRank(graph, DeviceKind::kCuda, Borrowed(device), &gpus)));
    }
  });
  return runs;
}

std::vector<DispatchResult> RunTwin(const DispatchProblem& p, float start) {
  const DispatchProblem wide = WithOneMoreExpert(p);
  const Joined joined = Join(p, /*filled=*/true);
  const auto [forward, backward] = TwinInputs(wide, joined, p.e + 1, start);
  const Attributes attributes = {{"leaves", p.leaves}, {"unit_rows", p.unit_rows}};
  return Cut(p, joined, RunOp("Experts", forward, 1, attributes)[0],
             RunOp("ExpertsGradient", backward, p.bias ? 6 : 4, attributes));
}

std::vector<DispatchResult> RunTruth(const DispatchProblem& p, float start) {
  const Joined joined = Join(p, /*filled=*/false);
  const auto [forward, backward] = TwinInputs(p, joined, p.e, start);
  return Cut(p, joined, RunReference("Experts", forward)[0],
             RunReference("ExpertsGradient", backward, p.bias ? 6 : 4));
}

void ExpectSameBits(const std::vector<DispatchResult>& got, const std::vector<DispatchResult>& want,
                    const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  const auto same = [&](const Array<float>& a, const Array<float>& b, const char* name,
                        size_t rank) {
    ASSERT_EQ(a.dims, b.dims) << name << " of rank " << rank << ", " << what;
    EXPECT_TRUE(a.f.empty() || std::memcmp(a.f.data(), b.f.data(), a.f.size() * sizeof(float)) == 0)
        << name << " of rank " << rank << ", " << what;
  };
  const char* names[] = {"gate_up.grad", "down.grad", "gate_up_bias.grad", "down_bias.grad"};
  for (size_t rank = 0; rank < got.size(); ++rank) {
    same(got[rank].y, want[rank].y, "y", rank);
    same(got[rank].dx, want[rank].dx, "dx", rank);
    same(got[rank].dweights, want[rank].dweights, "dweights", rank);
    ASSERT_EQ(got[rank].gradients.size(), want[rank].gradients.size());
    for (size_t g = 0; g < got[rank].gradients.size(); ++g) {
      same(got[rank].gradients[g], want[rank].gradients[g], names[g], rank);
    }
  }
}

}  // namespace weir
