#include "bench/dispatch_bench.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <random>

#include "backend/plan.h"
#include "bench/metered_communicator.h"
#include "graph/error.h"
#include "graph/layout.h"
#include "graph/op_schema.h"
#include "kernels/pipelined_llep/shape.h"

namespace weir {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Variant {
  const char* name;
  double lambda;
  int64_t chunk_tokens, max_chunks, max_foreign;
};

Attributes AttributesOf(const DispatchBenchOptions& o, const Variant& v) {
  Attributes attributes = {{"experts", o.experts},        {"expert_parallel", o.expert_parallel},
                           {"leaves", o.leaves},          {"unit_rows", o.unit_rows},
                           {"max_tokens", o.tokens},      {"chunk_tokens", v.chunk_tokens},
                           {"max_chunks", v.max_chunks},  {"llep_lambda", v.lambda},
                           {"llep_alpha", o.alpha},       {"min_rows", o.min_rows},
                           {"max_foreign", v.max_foreign}};
  if (o.expert_parallel > 1) attributes.Set("group", std::string("expert"));
  return attributes;
}

// One layer of experts of one rank: the forward node and, if asked, that of its gradients.
struct Layer {
  Graph graph;
  Value *ids, *counts;
  std::vector<std::pair<Value*, float>> drawn;  // with their standard deviation
  const Node *forward, *backward = nullptr;

  Layer(const DispatchBenchOptions& o, const Variant& v, int64_t held, bool with_backward) {
    const int64_t n = o.tokens, h = o.hidden, i = o.expert_width;
    const auto input = [&](const char* name, DType dtype, const Dims& dims, float scale) {
      Value* value = graph.AddInput(name, dtype, ToShape(dims));
      if (scale > 0) drawn.emplace_back(value, scale);
      return value;
    };
    Value* x = input("x", o.dtype, {n, h}, 1);
    ids = input("ids", DType::kInt64, {n, o.top_k}, 0);
    Value* weights = input("weights", DType::kFloat32, {n, o.top_k}, 1);
    Value* gate_up = input("gate_up", o.dtype, {held, 2 * i, h}, 0.02f);
    Value* down = input("down", o.dtype, {held, h, i}, 0.02f);
    Value* y = graph.AddValue("y");
    counts = graph.AddValue("counts");
    const Attributes attributes = AttributesOf(o, v);
    Node* node = graph.AddNode(GetOp("PipelinedLlep"), {x, ids, weights, gate_up, down},
                               {y, counts}, attributes);
    InferNode(*node);
    forward = node;
    graph.outputs = {y, counts};
    if (!with_backward) return;
    Value* dy = input("dy", o.dtype, {n, h}, 1);
    const auto accumulator = [&](const char* name, const Value* of) {
      Value* value = input(name, DType::kFloat32, ToDims(of->shape), 0);
      value->role = Role::kGradient;
      return value;
    };
    const std::vector<Value*> out = {graph.AddValue("dx"), graph.AddValue("dweights"),
                                     graph.AddValue("dgate_up"), graph.AddValue("ddown")};
    node = graph.AddNode(
        GetOp("PipelinedLlepGradient"),
        {x, ids, weights, gate_up, down, nullptr, nullptr, dy, accumulator("gate_up.sum", gate_up),
         accumulator("down.sum", down), nullptr, nullptr, counts},
        out, attributes);
    node->phase = Phase::kBackward;
    InferNode(*node);
    backward = node;
    graph.outputs.insert(graph.outputs.end(), out.begin(), out.end());
  }
};

// A block of normal numbers again and again.
void Draw(Device& device, const Tensor& tensor, float scale, uint32_t seed) {
  constexpr int64_t kBlock = 1 << 20;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> wide(kBlock);
  std::vector<uint16_t> narrow(kBlock);
  for (int64_t k = 0; k < kBlock; ++k) {
    wide[static_cast<size_t>(k)] = normal(random);
    narrow[static_cast<size_t>(k)] = FloatToBFloat16(wide[static_cast<size_t>(k)]);
  }
  const bool bf16 = tensor.dtype == DType::kBFloat16;
  const void* block = bf16 ? static_cast<const void*>(narrow.data()) : wide.data();
  const int64_t bytes = BytesOf(tensor.dtype, kBlock), all = tensor.size_bytes();
  for (int64_t at = 0; at < all; at += bytes) {
    device.Upload(tensor.bytes + at, block, std::min(bytes, all - at));
  }
}

class Timer {
 public:
  Timer(const DispatchBenchOptions& options, const std::shared_ptr<Device>& device,
        Communicator* world)
      : o_(options), device_(device) {
    if (world != nullptr) metered_.emplace(*world);
  }

  DispatchTiming Run(const Variant& variant) {
    DispatchTiming t;
    t.name = variant.name;
    for (const bool backward : {true, false}) {
      const Layer layer(o_, variant, Held(), backward);
      const Plan plan = MakePlan(layer.graph, device_->kind());
      Describe(layer, plan, t);
      std::optional<Executor> executor;
      if (!Fits(plan, executor, t)) continue;
      t.forward_fits = true;
      t.backward_fits = backward;
      Measure(layer, variant, *executor, t);
      break;
    }
    return t;
  }

 private:
  int64_t rank() const { return metered_ ? metered_->rank() : 0; }
  int64_t Held() const {
    return ShareOf(o_.experts, o_.expert_parallel, rank() % o_.expert_parallel).size();
  }
  template <class T>
  std::vector<T> Gather(const T& value) {
    return metered_ ? metered_->host().GatherValues(value, {"Gather", "timing"})
                    : std::vector<T>{value};
  }
  template <class T>
  double Largest(const T& value) {
    const std::vector<T> all = Gather(value);
    return static_cast<double>(*std::max_element(all.begin(), all.end()));
  }

  static void Describe(const Layer& layer, const Plan& plan, DispatchTiming& t) {
    const auto workspace = [&](const Node* node) {
      for (const PlannedStep& step : plan.steps) {
        if (step.node == node && step.workspace >= 0)
          return plan.buffers[static_cast<size_t>(step.workspace)].bytes;
      }
      return int64_t{0};
    };
    t.forward_workspace = workspace(layer.forward);
    if (layer.backward != nullptr) t.backward_workspace = workspace(layer.backward);
    t.arena = std::max(t.arena, plan.arena_bytes);
  }

  // All ranks go on, or none.
  bool Fits(const Plan& plan, std::optional<Executor>& executor, DispatchTiming& t) {
    std::string why;
    try {
      executor.emplace(plan, ExecutorOptions{.communicator = metered_ ? &*metered_ : nullptr,
                                             .device = device_});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBudgetExceeded) throw;
      why = error.message();
    }
    if (Largest(int{!why.empty()}) == 0) return true;
    executor.reset();
    t.refusal = why.empty() ? "another rank has no room" : why;
    return false;
  }

  void Measure(const Layer& layer, const Variant& variant, Executor& executor, DispatchTiming& t) {
    uint32_t seed = static_cast<uint32_t>(100 * rank());
    for (const auto& [value, scale] : layer.drawn)
      Draw(*device_, executor.TensorOf(*value), scale, ++seed);
    std::vector<int64_t> ids;
    for (int64_t route = 0; route < o_.tokens * o_.top_k; ++route)
      ids.push_back(SyntheticRoute(o_, rank(), route / o_.top_k, route % o_.top_k));
    executor.Write(*layer.ids, ids.data(), std::ssize(ids) * 8);
    t.forward_sent = Sent([&] { executor.Run(Phase::kForward); }, executor);
    t.forward_s = Median([&] { executor.Run(Phase::kForward); }, executor);
    if (layer.backward != nullptr) {
      t.both_sent = Sent([&] { executor.Run(); }, executor);
      t.backward_s = Median([&] { executor.Run(Phase::kBackward); }, executor);
      t.both_s = Median([&] { executor.Run(); }, executor);
    }
    DescribePlan(layer, variant, executor, t);
  }

  double Sent(const std::function<void()>& work, const Executor& executor) {
    const int64_t before = metered_ ? metered_->sent_bytes() : 0;
    work();
    executor.Synchronize();
    const std::vector<int64_t> all = Gather((metered_ ? metered_->sent_bytes() : 0) - before);
    double sum = 0;
    for (const int64_t bytes : all) sum += static_cast<double>(bytes);
    return sum / static_cast<double>(all.size());
  }

  // Ranks start together; a run lasts as long as that of the slowest. At least two, up to 10 s.
  double Median(const std::function<void()>& work, const Executor& executor) {
    std::vector<double> seconds;
    double total = 0;
    while (std::ssize(seconds) < std::max(2, o_.repeats) && (seconds.size() < 2 || total < 10)) {
      Gather(0);
      const auto start = std::chrono::steady_clock::now();
      work();
      executor.Synchronize();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      seconds.push_back(Largest(took.count()));
      total += seconds.back();
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  void DescribePlan(const Layer& layer, const Variant& variant, const Executor& executor,
                    DispatchTiming& t) {
    const LlepKnobs knobs = KnobsOf(AttributesOf(o_, variant), o_.tokens, o_.top_k);
    std::vector<int64_t> counts(static_cast<size_t>(knobs.ranks * knobs.leaves * knobs.experts));
    executor.Read(*layer.counts, counts.data(), std::ssize(counts) * 8);
    const LlepPlan plan = MakeLlepPlan(knobs, counts);
    std::vector<double> rows(static_cast<size_t>(knobs.ranks));
    double sum = 0;
    for (const LlepChunk& chunk : plan.chunks) {
      for (size_t r = 0; r < rows.size(); ++r) rows[r] += static_cast<double>(chunk.received[r]);
      sum += static_cast<double>(chunk.rows());
    }
    t.load = sum == 0 ? 1
                      : *std::max_element(rows.begin(), rows.end()) *
                            static_cast<double>(knobs.ranks) / sum;
    t.chunks = std::ssize(plan.chunks);
    for (const auto& borrowed : plan.foreign)
      t.borrowed = std::max(t.borrowed, std::ssize(borrowed));
  }

  const DispatchBenchOptions& o_;
  std::shared_ptr<Device> device_;
  std::optional<MeteredCommunicator> metered_;
};

}  // namespace

int64_t SyntheticRoute(const DispatchBenchOptions& o, int64_t rank, int64_t token, int64_t slot) {
  // Every leaf meets all experts in turn.
  if (o.skew <= 0) {
    return (rank + token % o.leaves + token / o.leaves * o.top_k + slot) % o.experts;
  }
  uint64_t state = static_cast<uint64_t>((rank * o.tokens + token) * o.top_k + slot);
  const auto next = [&] {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  };
  const bool hot = static_cast<double>(next() >> 11) * 0x1p-53 < o.skew / 100;
  const int64_t cold = o.experts - o.hot_experts;
  if (hot || cold == 0) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(o.hot_experts));
  }
  return o.hot_experts + static_cast<int64_t>(next() % static_cast<uint64_t>(cold));
}

std::vector<DispatchTiming> TimeDispatch(const DispatchBenchOptions& o,
                                         const std::shared_ptr<Device>& device,
                                         Communicator* world) {
  Timer timer(o, device, world);
  return {timer.Run({"plain", kNever, 0, 0, 0}),
          timer.Run({"llep twin", o.lambda, 0, 0, o.max_foreign}),
          timer.Run({"pipelined", o.lambda, o.chunk_tokens, o.max_chunks, o.max_foreign})};
}

}  // namespace weir
