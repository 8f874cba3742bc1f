#include "cli/step_cost.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "graph/op_schema.h"
#include "kernels/pipelined_llep/shape.h"
#include "kernels/ring_dtp/sizes.h"

namespace weir {
namespace {

double BytesOfValue(const Value* value) {
  if (value == nullptr || !value->has_shape || !IsConcrete(value->shape)) return 0;
  return static_cast<double>(BytesOf(value->dtype, NumElements(ToDims(value->shape))));
}

double BytesMoved(const Node& node) {
  if (node.schema->view) return 0;
  double bytes = 0;
  for (const Value* input : node.inputs) bytes += BytesOfValue(input);
  for (const Value* output : node.outputs) bytes += BytesOfValue(output);
  return bytes;
}

// Heads of 64 channels run at this share of the rate of wider ones (measured: 505 of 609, 437 of 539 TFLOP/s).
constexpr double kNarrowHeads = 0.82;

struct Kind {
  const char* term;
  double flops_per_s;
};

// Ops that matrix products and attention bound; nullptr term for the rest.
Kind KindOf(const Node& node, const MachineRates& rates) {
  const std::string& op = node.op();
  const bool backward = op.ends_with("Gradient");
  if (op.starts_with("Attention")) {
    const double share = node.in(0)->shape[3].Constant() < 128 ? kNarrowHeads : 1;
    return {"attention", share * (backward ? rates.attention_backward_flops : rates.attention_flops)};
  }
  if (op.starts_with("Experts") || op.starts_with("PipelinedLlep")) {
    return {"experts", backward ? rates.experts_backward_flops : rates.experts_flops};
  }
  const bool product = op.starts_with("Linear") || op.starts_with("MatMul") || op == "Gemm" || op == "RingDtp";
  return {product ? "products" : nullptr, rates.gemm_flops};
}

class Estimate {
 public:
  Estimate(const Plan& plan, const MachineRates& rates) : rates_(rates) {
    for (const PlannedStep& step : plan.steps) Add(*step.node);
    HideCopies();
  }
  StepCost cost;

 private:
  void Add(const Node& node) {
    const std::string& op = node.op();
    if (op == "StashStart") stashed_ += BytesOfValue(node.in(0));
    if (op == "FetchStart") fetched_ += BytesOfValue(node.in(0));
    if (op.starts_with("Stash") || op.starts_with("Fetch")) return;
    if (op == "SequenceToHeads" || op == "HeadsToSequence") return AddHeadExchange(node);
    if (op == "AllGatherRows") return AddGather(node);
    if (op == "ReduceRows") return AddBeside(node.schema->cost(node).bytes / 2);
    if (op == "TreeReduceJoin" || op == "JoinBeside") return;
    if (op == "TreeReduceGradient" && node.phase == Phase::kBackward) return AddBeside(node.schema->cost(node).bytes / 2);
    if (op == "TreeReduceGradient") return AddLink(node, node.schema->cost(node).bytes / 2, 0);
    if (op == "PrefetchState") return;  // counted where it is awaited
    if (op == "OffloadStreamAdamW") return AddStreamedMoments(node);
    const double moved = BytesMoved(node) / rates_.memory_bandwidth;
    const Kind kind = KindOf(node, rates_);
    if (kind.term == nullptr || node.schema->cost == nullptr) return Take(node, Updates(node) ? "optimizer" : "rows", moved);
    const double flops = node.schema->cost(node).flops;
    cost.flops += flops;
    const double seconds = std::max(flops / kind.flops_per_s, moved);
    Take(node, kind.term, seconds);
    if (op.starts_with("PipelinedLlep")) AddDispatch(node, seconds);
    if (op == "RingDtp") AddHead(node, seconds);
  }

  // All exchange with all; heads that several ranks hold go to, or come from, each of them.
  void AddHeadExchange(const Node& node) {
    const auto ranks = static_cast<double>(node.attributes.Int("ranks", 1));
    AddLink(node, (ranks - 1) / ranks * std::max(BytesOfValue(node.in(0)), BytesOfValue(node.out(0))), 0);
  }

  static bool Updates(const Node& node) { return node.phase == Phase::kNorm || node.phase == Phase::kUpdate; }

  void Take(const Node& node, const char* term, double seconds) {
    const bool forward = node.phase == Phase::kForward, backward = node.phase == Phase::kBackward;
    (forward || backward ? cost.micro_batch : cost.update)[term] += seconds;
    if (forward) forward_ += seconds;
    if (backward) backward_ += seconds;
  }

  // `hidden`: seconds of compute that it may hide behind.
  void AddLink(const Node& node, double bytes, double hidden) {
    cost.link_bytes += bytes;
    Take(node, "link", std::max(0.0, bytes / rates_.link - hidden));
  }

  // What comes a layer ahead is hidden behind the phase, but for the first.
  void AddGather(const Node& node) {
    const auto ranks = static_cast<double>(node.attributes.Int("ranks", 1));
    const double bytes = BytesOfValue(node.out()) * (ranks - 1) / ranks;
    if (node.attributes.Int("event", -1) < 0) return AddLink(node, bytes, 0);
    cost.link_bytes += bytes;
    if (ahead_ + ahead_in_backward_ == 0) cost.micro_batch["link"] += bytes / rates_.link;
    (node.phase == Phase::kForward ? ahead_ : ahead_in_backward_) += bytes;
  }

  // Hidden behind the rest of backward, but for the last one.
  void AddBeside(double bytes) {
    cost.link_bytes += bytes;
    beside_ += bytes;
    last_beside_ = bytes;
  }

  // Rows go out and come home; the gradient sends x and dy, and dx comes home.
  void AddDispatch(const Node& node, double compute) {
    const DispatchShape s(node);
    if (!s.distributed()) return;
    const double ranks = static_cast<double>(s.knobs.ranks), chunks = static_cast<double>(s.sizes.chunks);
    const double trips = node.op().ends_with("Gradient") ? 3 : 2;
    const double bytes = trips * BytesOfValue(node.in(0)) * static_cast<double>(s.k) * (ranks - 1) / ranks;
    AddLink(node, bytes, std::min(compute, bytes / rates_.link) * (1 - 1 / chunks));
  }

  // The weight comes in windows, once per pass, and parts of its gradient go; all but the first behind the one before.
  void AddHead(const Node& node, double compute) {
    const HeadSizes s = HeadSizesOf(ToDims(node.in(0)->shape), ToDims(node.in(1)->shape), node.attributes);
    if (s.relay) return AddTokenRelay(node, s, compute);
    const double ranks = static_cast<double>(s.ranks), windows = static_cast<double>(s.windows()), passes = windows > 1 ? 2 : 1;
    const double whole = static_cast<double>(BytesOf(node.in(1)->dtype, s.vocabulary * s.channels));
    const double parts = s.shard_gradient ? static_cast<double>(BytesOf(DType::kFloat32, s.vocabulary * s.channels)) : 0;
    const double bytes = (passes * whole + parts) * (ranks - 1) / ranks;
    AddLink(node, bytes, std::min(compute, bytes / rates_.link) * (1 - 1 / (passes * windows)));
  }

  // Token blocks pass the holders: x comes behind the block before, dx is handed on between blocks, and P-1 steps at either end
  // of a pass leave holders idle.
  void AddTokenRelay(const Node& node, const HeadSizes& s, double compute) {
    const double ranks = static_cast<double>(s.ranks), blocks = ranks * static_cast<double>(std::max<int64_t>(1, DivCeil(s.tokens, s.block)));
    const double x = 2 * BytesOfValue(node.in(0)) * (ranks - 1), dx = static_cast<double>(BytesOf(DType::kFloat32, s.tokens * s.channels)) * ranks;
    AddLink(node, x + dx, std::min(compute, x / rates_.link) - compute * (ranks - 1) / blocks);
  }

  // 8 bytes of moments a parameter each way, 10 with the low half of a split master.
  void AddStreamedMoments(const Node& node) {
    const double bytes = BytesOfValue(node.in(2)) + BytesOfValue(node.in(3)) + BytesOfValue(node.in(7));
    cost.host_bytes += bytes;
    Take(node, "host link", std::max({bytes / rates_.h2d, bytes / rates_.d2h, BytesMoved(node) / rates_.memory_bandwidth}));
  }

  void HideCopies() {
    cost.host_bytes += std::max(stashed_, fetched_);
    const double exposed = std::max(0.0, stashed_ / rates_.d2h - forward_) + std::max(0.0, fetched_ / rates_.h2d - backward_);
    if (exposed > 0) cost.micro_batch["host link"] += exposed;
    const double late = std::max(0.0, ahead_ / rates_.link - forward_) + std::max(0.0, ahead_in_backward_ / rates_.link - backward_);
    if (late > 0) cost.micro_batch["link"] += late;
    const double room = std::max(0.0, backward_ - ahead_in_backward_ / rates_.link);
    if (beside_ > 0) cost.update["link"] += std::max(last_beside_ / rates_.link, beside_ / rates_.link - room);
  }

  const MachineRates& rates_;
  double forward_ = 0, backward_ = 0, stashed_ = 0, fetched_ = 0, beside_ = 0, last_beside_ = 0, ahead_ = 0, ahead_in_backward_ = 0;
};

}  // namespace

StepCost EstimateStep(const Plan& plan, const MachineRates& rates) { return Estimate(plan, rates).cost; }

StepCost::Terms StepCost::OfStep(double micro_batches) const {
  Terms terms = update;
  for (const auto& [term, seconds] : micro_batch) terms[term] += micro_batches * seconds;
  return terms;
}

double StepCost::Total(double micro_batches) const {
  double total = 0;
  for (const auto& [term, seconds] : OfStep(micro_batches)) total += seconds;
  return total;
}

MachineRates Float32Rates() {
  return {.name = "an H200 in float32", .gemm_flops = 22e12, .attention_flops = 11e12, .attention_backward_flops = 11e12, .experts_flops = 17e12,
          .experts_backward_flops = 13e12};
}

MachineRates CpuRates(int64_t cores) {
  const auto n = static_cast<double>(cores);
  return {.name = StrCat(cores, cores == 1 ? " CPU core" : " CPU cores"),
          .gemm_flops = 93e9 * n,
          .attention_flops = 58e9 * n,
          .attention_backward_flops = 74e9 * n,
          .experts_flops = 90e9 * n,
          .experts_backward_flops = 70e9 * n,
          .memory_bandwidth = 12e9 * n,
          .h2d = 6e9 * n,
          .d2h = 6e9 * n,
          .link = 2e9 * n};
}

MachineRates ReadMachine(const std::string& path, MachineRates rates) {
  std::ifstream file(path);
  WEIR_CHECK(file.good(), ErrorCode::kIoError, "--machine=", path, ": cannot be read");
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  WEIR_CHECK(json.is_object(), ErrorCode::kInvalidArgument, "--machine=", path, ": expected a JSON object such as {\"gemm_flops\": 6e14}");
  rates.name = "'" + path + "'";
  const std::map<std::string, double*> members = {
      {"gemm_flops", &rates.gemm_flops},       {"attention_flops", &rates.attention_flops}, {"attention_backward_flops", &rates.attention_backward_flops},
      {"experts_flops", &rates.experts_flops}, {"experts_backward_flops", &rates.experts_backward_flops},
      {"memory_bandwidth", &rates.memory_bandwidth}, {"h2d", &rates.h2d}, {"d2h", &rates.d2h}, {"link", &rates.link}};
  std::string known, wrong;
  for (const auto& [name, member] : members) known += " " + name;
  for (const auto& [key, value] : json.items()) {
    const auto member = members.find(key);
    if (member == members.end()) {
      wrong += "; unknown key '" + key + "'";
    } else if (!value.is_number() || !(value.get<double>() > 0)) {
      wrong += "; '" + key + "' must be a positive number per second, got " + value.dump();
    } else {
      *member->second = value.get<double>();
    }
  }
  WEIR_CHECK(wrong.empty(), ErrorCode::kInvalidArgument, "--machine=", path, ": ", wrong.substr(std::min<size_t>(2, wrong.size())), "; known:", known);
  return rates;
}

std::string InWords(const StepCost::Terms& terms) {
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [term, seconds] : terms) order.emplace_back(seconds, term);
  std::ranges::sort(order, std::greater{});
  std::string text;
  for (const auto& [seconds, term] : order) {
    char number[32];
    std::snprintf(number, sizeof(number), "%.3g", seconds);
    if (seconds > 0) text += StrCat(text.empty() ? "" : "  ", term, " ", number);
  }
  return text;
}

}  // namespace weir
