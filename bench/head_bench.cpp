#include "bench/head_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <random>

#include "backend/plan.h"
#include "graph/error.h"
#include "graph/layout.h"
#include "graph/text.h"
#include "graph/vocabulary_share.h"

namespace weir {
namespace {

constexpr int64_t kLeaf = 2048, kRelayShare = 8192;

struct Variant {
  std::string name;
  int64_t strip, ranks;         // strip 0: logits whole, as separate nodes
  bool shard_gradient = false;  // summed over ranks, too
  bool relay = false;           // tokens travel
};

struct HeadTiming {
  std::string name, failure;
  double seconds = 0, loss = 0;
  int64_t planned = 0, above = 0, received = 0;
  std::vector<std::byte> dx, dw;  // samples, to compare
};

class HeadBench {
 public:
  HeadBench(const HeadBenchOptions& options, const std::shared_ptr<Device>& device, Communicator* world)
      : o_(options), device_(device), world_(world) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : block_) value = normal(random);
  }

  HeadTiming Measure(const Variant& variant) {
    HeadTiming timing{.name = variant.name, .failure = {}, .dx = {}, .dw = {}};
    try {
      Run(variant, timing);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBudgetExceeded) throw;
      timing.failure = "does not fit";
    }
    return timing;
  }

 private:
  static constexpr int64_t kBlock = 1 << 20;

  int64_t rank() const { return world_ == nullptr ? 0 : world_->rank(); }
  Share Held(const Variant& variant) const {
    return VocabularyShare(o_.vocabulary, variant.relay ? kRelayShare : kLeaf, variant.ranks, rank() % variant.ranks);
  }

  int64_t GradientRows(const Variant& variant) const { return variant.shard_gradient ? Held(variant).size() : o_.vocabulary; }

  std::string TextOf(const Variant& variant) const {
    const std::string type = StrCat(DTypeName(o_.dtype), "["), x = StrCat(type, o_.tokens, ",", o_.channels, "]");
    const std::string gradient = StrCat("float[", GradientRows(variant), ",", o_.channels, "]");
    std::string nodes;
    if (variant.strip == 0) {
      nodes = "logits = Linear(x, w) loss, lse = ai.weir::CrossEntropy(logits, labels, scale) dlogits = "
              "CrossEntropyGradient(logits, labels, lse, scale, one) dx = MatMul(dlogits, w) dw = "
              "LinearWeightGradient(x, dlogits, acc)";
    } else {
      const std::string spread = StrCat("group = \"vocabulary\", vocab_parallel = ", variant.ranks, ", vocabulary = ", o_.vocabulary,
                                        variant.relay ? StrCat(", move = \"activations\", share_columns = ", kRelayShare) : "",
                                        variant.shard_gradient ? ", shard_gradient = 1, " : ", ");
      nodes = StrCat("loss, dx, dw = RingDtp<", variant.ranks > 1 ? spread : "", "strip = ", variant.strip, ">(x, w, labels, scale, acc)");
    }
    return StrCat("graph head (", x, " x, ", type, Held(variant).size(), ",", o_.channels, "] w, int64[", o_.tokens,
                  "] labels, float[] scale) => (double[] loss, ", x, " dx, ", gradient, " dw)\ngradient ", gradient,
                  " acc\nconstant float[] one = {1}\n{ ", nodes, " }");
  }

  // Normal numbers times `scale`, the same ones for the same element of the whole tensor.
  void Draw(const Tensor& tensor, int64_t first, float scale) const {
    std::vector<std::byte> bytes(static_cast<size_t>(BytesOf(tensor.dtype, kBlock)));
    for (size_t i = 0; i < block_.size(); ++i) {
      const float value = block_[i] * scale;
      if (tensor.dtype == DType::kFloat32) reinterpret_cast<float*>(bytes.data())[i] = value;
      if (tensor.dtype == DType::kBFloat16) reinterpret_cast<uint16_t*>(bytes.data())[i] = FloatToBFloat16(value);
    }
    for (int64_t at = 0; at < tensor.elements();) {
      const int64_t from = (first + at) % kBlock, count = std::min(kBlock - from, tensor.elements() - at);
      device_->Upload(tensor.bytes + BytesOf(tensor.dtype, at), bytes.data() + BytesOf(tensor.dtype, from), BytesOf(tensor.dtype, count));
      at += count;
    }
  }

  void Feed(Executor& executor, const Graph& graph, const Variant& variant) const {
    Draw(executor.TensorOf(*graph.FindValue("x")), 1000 * rank(), 1);
    Draw(executor.TensorOf(*graph.FindValue("w")), Held(variant).begin * o_.channels, 0.02f);
    std::vector<int64_t> labels(static_cast<size_t>(o_.tokens));
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i) * 7919 % o_.vocabulary;
    const float scale = 1 / static_cast<float>(std::max<int64_t>(1, o_.tokens * o_.ranks));
    executor.Write(*graph.FindValue("labels"), labels.data(), static_cast<int64_t>(labels.size() * sizeof(int64_t)));
    executor.Write(*graph.FindValue("scale"), &scale, sizeof(scale));
  }

  void Sample(const Executor& executor, const Value& value, std::vector<std::byte>& sample) const {
    const Tensor tensor = executor.TensorOf(value);
    const int64_t count = std::min<int64_t>(tensor.size_bytes(), 1 << 22);
    for (const int64_t at : {int64_t{0}, tensor.size_bytes() - count}) {
      const size_t end = sample.size();
      sample.resize(end + static_cast<size_t>(count));
      device_->Download(sample.data() + end, tensor.bytes + at, count);
    }
  }

  void Meet() const {
    if (world_ != nullptr) world_->host().Barrier({"Barrier", "bench head"});
  }

  double Time(Executor& executor) const {
    std::vector<double> seconds;
    for (int run = 0; run <= o_.repeats; ++run) {
      Meet();
      const auto start = std::chrono::steady_clock::now();
      executor.Run();
      executor.Synchronize();
      Meet();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (run > 0) seconds.push_back(took.count());
    }
    std::ranges::nth_element(seconds, seconds.begin() + o_.repeats / 2);
    return seconds[static_cast<size_t>(o_.repeats / 2)];
  }

  void Run(const Variant& variant, HeadTiming& timing) const {
    const auto graph = ParseText(TextOf(variant));
    const Plan plan = MakePlan(*graph, device_->kind());
    timing.planned = plan.arena_bytes;
    timing.above = timing.planned - 2 * BytesOf(o_.dtype, o_.tokens * o_.channels) -
                   BytesOf(o_.dtype, Held(variant).size() * o_.channels) - BytesOf(DType::kFloat32, GradientRows(variant) * o_.channels);
    // The first strip of a window is for the sums, then all windows come again for the gradients.
    const int64_t passes = o_.vocabulary > variant.strip ? 2 : 1, away = o_.vocabulary - Held(variant).size(), x = o_.tokens * o_.channels;
    timing.received = variant.ranks == 1 ? 0 : passes * BytesOf(o_.dtype, away * o_.channels);
    if (variant.relay) {
      timing.received = 2 * BytesOf(o_.dtype, (variant.ranks - 1) * x) + BytesOf(DType::kFloat32, variant.ranks * x);
    } else if (variant.shard_gradient) {
      timing.received += BytesOf(DType::kFloat32, (variant.ranks - 1) * Held(variant).size() * o_.channels);
    }
    Executor executor(plan, {.communicator = world_, .device = device_});
    Feed(executor, *graph, variant);
    executor.Run();
    executor.Read(*graph->outputs[0], &timing.loss, sizeof(timing.loss));
    Sample(executor, *graph->outputs[1], timing.dx);
    if (!variant.shard_gradient) Sample(executor, *graph->outputs[2], timing.dw);
    timing.seconds = Time(executor);
  }

  HeadBenchOptions o_;
  std::shared_ptr<Device> device_;
  Communicator* world_;
  std::vector<float> block_ = std::vector<float>(kBlock);
};

double GiB(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

void Print(const HeadBenchOptions& o, std::string_view device, const std::vector<HeadTiming>& timings, std::ostream& out) {
  const double flop = 6.0 * static_cast<double>(o.tokens) * static_cast<double>(o.channels) * static_cast<double>(o.vocabulary);
  if (o.json) {
    out << "{\"device\": \"" << device << "\", \"dtype\": \"" << DTypeName(o.dtype) << "\", \"tokens\": " << o.tokens
        << ", \"channels\": " << o.channels << ", \"vocabulary\": " << o.vocabulary << ", \"ranks\": " << o.ranks
        << ", \"vocab_parallel\": " << o.vocabulary_parallel << ", \"strip\": " << o.strip << ", \"results\": [";
  } else {
    out << "head " << o.tokens << "," << o.channels << "," << o.vocabulary << " " << DTypeName(o.dtype) << " on " << o.ranks << " x "
        << device << ", strip " << o.strip << std::fixed << "\n";
  }
  bool first = true;
  for (const HeadTiming& t : timings) {
    const double tflops = t.seconds > 0 ? flop / t.seconds * 1e-12 : 0;
    if (o.json) {
      out << (first ? "" : ", ") << "{\"variant\": \"" << t.name << "\", \"failure\": \"" << t.failure << "\", \"ms\": " << t.seconds * 1e3
          << ", \"tflops\": " << tflops << ", \"planned_bytes\": " << t.planned << ", \"bytes_above\": " << t.above
          << ", \"received_bytes\": " << t.received << ", \"loss\": " << t.loss << "}";
    } else if (!t.failure.empty()) {
      out << std::left << std::setw(16) << t.name << t.failure << ": " << std::setprecision(2) << GiB(t.planned) << " GiB\n";
    } else {
      out << std::left << std::setw(16) << t.name << std::right << std::setprecision(2) << std::setw(10) << t.seconds * 1e3 << " ms"
          << std::setprecision(1) << std::setw(8) << tflops << " TFLOP/s" << std::setprecision(2) << std::setw(8) << GiB(t.planned)
          << " GiB, " << GiB(t.above) << " above inputs and results, " << GiB(t.received) << " received, loss " << std::setprecision(6)
          << t.loss << "\n";
    }
    first = false;
  }
  if (o.json) out << "]}\n";
}

bool SameBits(const HeadTiming& a, const HeadTiming& b) {
  if (!a.failure.empty() || !b.failure.empty()) return true;
  return a.loss == b.loss && a.dx == b.dx && (b.dw.empty() || a.dw == b.dw);
}

// On every rank alike: whether all of them had the same bits.
bool Agree(Communicator* world, bool same) {
  if (world == nullptr) return same;
  const auto all = world->host().GatherValues(same ? 1 : 0, {"GatherValues", "bench head"});
  return std::ranges::find(all, 0) == all.end();
}

}  // namespace

int BenchHead(const HeadBenchOptions& options, const std::shared_ptr<Device>& device, Communicator* world, std::ostream& out) {
  if (world != nullptr) world->SetLayout({.world = options.ranks, .vocabulary_parallel = options.vocabulary_parallel});
  HeadBench bench(options, device, world);
  std::vector<HeadTiming> timings;
  const int64_t strip = options.strip, ranks = options.vocabulary_parallel;
  for (const Variant& variant : {Variant{.name = "whole", .strip = 0, .ranks = 1}, {.name = "strips", .strip = strip, .ranks = 1},
                                 {.name = StrCat("spread over ", ranks), .strip = strip, .ranks = ranks},
                                 {.name = "gradient too", .strip = strip, .ranks = ranks, .shard_gradient = true},
                                 {.name = "tokens travel", .strip = strip, .ranks = ranks, .shard_gradient = true, .relay = true}}) {
    if (options.vocabulary_parallel == 1 && timings.size() == 2) break;  // the same again
    timings.push_back(bench.Measure(variant));
  }
  bool own = true;
  for (const HeadTiming& t : timings) own = own && (&t == &timings[0] || SameBits(timings[1], t));
  const bool same = Agree(world, own);
  if (world != nullptr && world->rank() != 0) return same ? 0 : 1;
  Print(options, DeviceName(device->kind()), timings, out);
  if (!same) out << "spread and whole weight differ\n";
  return same ? 0 : 1;
}

}  // namespace weir
