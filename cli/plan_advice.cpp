#include "cli/plan_advice.h"

#include <algorithm>
#include <functional>
#include <set>

#include "graph/error.h"
#include "graph_passes/import_report.h"

namespace weir {
namespace {

constexpr Lever kLevers[] = {Lever::kMicroBatch, Lever::kContext, Lever::kStrip, Lever::kRecompute, Lever::kMoments, Lever::kBoundaries, Lever::kChunks, Lever::kExperts};
constexpr int64_t kStrip = 8192, kBucket = int64_t{1} << 25, kAllBoundaries = int64_t{1} << 50;
constexpr int64_t kRounding = int64_t{1} << 20;  // of printed host budgets

// A quarter of the tokens, one leaf of them, and what the run has; largest first.
std::vector<int64_t> ChunkSizesOf(const PlanKnobs& knobs) {
  const int64_t tokens = knobs.micro_batch * knobs.sequence / knobs.dispatch.context_parallel;
  std::set<int64_t, std::greater<>> sizes = {DivCeil(tokens, 4), DivCeil(tokens, std::max<int64_t>(1, knobs.training.leaves)),
                                             knobs.dispatch.stream.chunk_tokens};
  sizes.erase(0);
  sizes.erase(tokens);
  return {sizes.begin(), sizes.end()};
}

// Divisors of the number of ranks above 1, up to `most`.
std::vector<int64_t> DegreesOf(int64_t world, int64_t most) {
  std::vector<int64_t> degrees;
  for (int64_t ranks = 2; ranks <= std::min(world, most); ++ranks) {
    if (world % ranks == 0) degrees.push_back(ranks);
  }
  return degrees;
}

// The settings of one lever, fastest first; the first leaves the knobs as a run without the flag has them.
std::vector<PlanKnobs> LevelsOf(Lever lever, const PlanKnobs& knobs, int64_t experts) {
  std::vector<PlanKnobs> levels;
  PlanKnobs off = knobs;
  const auto add = [&](const auto& change) {
    if (levels.empty()) levels.push_back(off);
    change(levels.emplace_back(off));
  };
  switch (lever) {
    case Lever::kMicroBatch:
      for (int64_t size = knobs.micro_batch; (size /= 2) >= 1;) add([&](PlanKnobs& k) { k.micro_batch = size; });
      break;
    case Lever::kContext:
      off.dispatch.context_parallel = 1;
      for (const int64_t ranks : DegreesOf(knobs.training.layout.world, knobs.sequence)) {
        if (knobs.sequence % ranks == 0) add([&](PlanKnobs& k) { k.dispatch.context_parallel = ranks; });
      }
      break;
    case Lever::kStrip:
      off.training.strip = 0;
      add([&](PlanKnobs& k) { k.training.strip = knobs.training.strip > 0 ? knobs.training.strip : kStrip; });
      break;
    case Lever::kRecompute:
      off.training.recompute = off.training.keep = "none";
      add([](PlanKnobs& k) { k.training.recompute = "layer", k.training.keep = "attention"; });
      add([](PlanKnobs& k) { k.training.recompute = "layer"; });
      break;
    case Lever::kMoments:
      off.training.offload = {};
      add([&](PlanKnobs& k) {
        k.training.offload = knobs.training.offload;
        if (k.training.offload.bucket == 0) k.training.offload.bucket = kBucket;
      });
      break;
    case Lever::kBoundaries:
      off.training.host_budget = 0;
      add([&](PlanKnobs& k) { k.training.host_budget = knobs.training.host_budget > 0 ? knobs.training.host_budget : kAllBoundaries; });
      break;
    case Lever::kChunks:
      off.dispatch.stream.chunk_tokens = off.dispatch.stream.max_chunks = 0;
      for (const int64_t size : ChunkSizesOf(knobs)) add([&](PlanKnobs& k) { k.dispatch.stream.chunk_tokens = size; });
      break;
    case Lever::kExperts:
      off.dispatch.expert_parallel = 1;
      for (const int64_t ranks : DegreesOf(knobs.training.layout.world, experts)) add([&](PlanKnobs& k) { k.dispatch.expert_parallel = ranks; });
      break;
  }
  if (levels.empty()) levels.push_back(off);
  return levels;
}

// Where `knobs` stands among the levels; a setting between two counts as the first at least as thrifty.
size_t LevelIn(Lever lever, const std::vector<PlanKnobs>& levels, const PlanKnobs& knobs) {
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    const PlanKnobs& level = levels[i];
    const bool here = lever == Lever::kMicroBatch   ? level.micro_batch <= knobs.micro_batch
                      : lever == Lever::kContext    ? level.dispatch.context_parallel >= knobs.dispatch.context_parallel
                      : lever == Lever::kStrip      ? level.training.strip == knobs.training.strip
                      : lever == Lever::kRecompute  ? level.training.recompute == knobs.training.recompute && level.training.keep == knobs.training.keep
                      : lever == Lever::kMoments    ? level.training.offload.bucket == knobs.training.offload.bucket
                      : lever == Lever::kBoundaries ? level.training.host_budget == knobs.training.host_budget
                      : lever == Lever::kChunks     ? level.dispatch.stream.chunk_tokens == knobs.dispatch.stream.chunk_tokens
                                                    : level.dispatch.expert_parallel >= knobs.dispatch.expert_parallel;
    if (here) return i;
  }
  return levels.size() - 1;
}

int64_t HeldBoundaries(const Candidate& candidate) {
  const auto held = candidate.host_ledger.find("boundaries");
  return held == candidate.host_ledger.end() ? 0 : DivCeil(held->second, kRounding) * kRounding;
}

class Chooser {
 public:
  // `floor`: levers go no lower than it has them; absent: as low as off.
  Chooser(PlanSearch& search, const PlanKnobs& from, bool keep_floor) : search_(search), from_(from) {
    const ImportReport report = DescribeModel(search.canonical());
    for (const Lever lever : kLevers) {
      const auto levels = LevelsOf(lever, from, report.expert_count);
      const size_t now = LevelIn(lever, levels, from);
      floor_[lever] = keep_floor ? now : lever == Lever::kMicroBatch ? now : 0;
      most_[lever] = std::max(floor_[lever], levels.size() - 1);
      experts_ = report.expert_count;
    }
  }

  const Candidate* Choose() {
    DropRefused();
    std::map<Lever, size_t> level = most_;
    level[Lever::kMicroBatch] = floor_[Lever::kMicroBatch];
    if (!At(level).fits) level = most_;
    if (!At(level).fits) return nullptr;
    for (const Lever lever : ByCost()) {
      for (size_t l = floor_[lever]; l < level[lever]; ++l) {
        auto faster = level;
        faster[lever] = l;
        if (!At(faster).fits) continue;
        level = faster;
        break;
      }
    }
    return Finish(*Fastest(At(level)));
  }

 private:
  PlanKnobs KnobsAt(const std::map<Lever, size_t>& level) const {
    PlanKnobs knobs = from_;
    for (const auto& [lever, l] : level) {
      const auto levels = LevelsOf(lever, knobs, experts_);
      knobs = levels[std::min(l, levels.size() - 1)];
    }
    return knobs;
  }
  const Candidate& At(const std::map<Lever, size_t>& level) { return search_.Try(KnobsAt(level)); }
  const Candidate& Alone(Lever lever, size_t l) {
    auto level = floor_;
    level[lever] = l;
    return At(level);
  }

  // Of all that fit on the way, `chosen` unless another is faster by more than rounding.
  const Candidate* Fastest(const Candidate& chosen) const {
    const Candidate* best = &chosen;
    for (const auto& one : search_.tried()) {
      if (one->fits && one->knobs.sequence == from_.sequence && one->seconds < best->seconds * 0.999) best = one.get();
    }
    return best;
  }

  // A lever that the model or the device has not.
  void DropRefused() {
    for (const Lever lever : kLevers) {
      while (most_[lever] > floor_[lever] && !Alone(lever, most_[lever]).refused.empty()) --most_[lever];
    }
  }

  // The lever that takes most time first; of equals the one that changes most to use.
  std::vector<Lever> ByCost() {
    std::vector<Lever> order(std::begin(kLevers), std::end(kLevers));
    std::ranges::stable_sort(order, std::greater{}, [&](Lever lever) {
      return Alone(lever, most_[lever]).seconds - Alone(lever, floor_[lever]).seconds;
    });
    return order;
  }

  // Moments stay on the device as far as there is room, and the host budget is what it holds.
  const Candidate* Finish(const Candidate& chosen) {
    const Candidate* best = &chosen;
    PlanKnobs knobs = chosen.knobs;
    if (knobs.training.host_budget == kAllBoundaries) {
      knobs.training.host_budget = HeldBoundaries(chosen);
      if (const Candidate& exact = search_.Try(knobs); exact.fits) best = &exact;
    }
    const int64_t room = search_.budgets().device - search_.budgets().beside_arena - best->device_bytes;
    if (knobs.training.offload.bucket > 0 && search_.budgets().device >= 0 && room > kRounding) {
      knobs = best->knobs;
      knobs.training.offload.resident += room / kRounding * kRounding;
      if (const Candidate& resident = search_.Try(knobs); resident.fits && resident.seconds < best->seconds) best = &resident;
    }
    return best;
  }

  PlanSearch& search_;
  PlanKnobs from_;
  int64_t experts_ = 0;
  std::map<Lever, size_t> floor_, most_;
};

}  // namespace

std::string FlagsOf(const PlanKnobs& base, const Candidate& candidate) {
  PlanKnobs knobs = candidate.knobs;
  if (knobs.training.host_budget == kAllBoundaries) knobs.training.host_budget = HeldBoundaries(candidate);
  return FlagsBeyond(base, knobs);
}

std::vector<Advice> AdviseKnobs(PlanSearch& search) {
  const Candidate& base = search.Try(search.base());
  const int64_t experts = DescribeModel(search.canonical()).expert_count;
  std::vector<Advice> advice;
  for (const Lever lever : kLevers) {
    const auto levels = LevelsOf(lever, search.base(), experts);
    for (size_t l = LevelIn(lever, levels, search.base()) + 1; l < levels.size(); ++l) {
      const Candidate& one = search.Try(levels[l]);
      if (!one.refused.empty() || one.device_bytes >= base.device_bytes) continue;
      advice.push_back({.candidate = &one,
                        .flags = FlagsOf(search.base(), one),
                        .device_saved = base.device_bytes - one.device_bytes,
                        .host_added = one.host_bytes - base.host_bytes,
                        .seconds_added = one.seconds - base.seconds,
                        .flop_share_added = lever == Lever::kMicroBatch ? 0 : one.cost.flops / base.cost.flops - 1,
                        .host_bytes_added = one.cost.host_bytes - base.cost.host_bytes,
                        .link_bytes_added = one.cost.link_bytes - base.cost.link_bytes});
    }
  }
  std::ranges::stable_sort(advice, std::greater{}, &Advice::device_saved);
  return advice;
}

const Candidate* FindFitting(PlanSearch& search, const PlanKnobs& from) { return Chooser(search, from, /*keep_floor=*/true).Choose(); }

const Candidate* ChooseKnobs(PlanSearch& search) { return Chooser(search, search.base(), /*keep_floor=*/false).Choose(); }

std::string TrainCommandLine(const std::string& model, const PlanKnobs& base, const PlanKnobs& knobs, DeviceKind device) {
  std::string line = StrCat("weir train ", model, device == DeviceKind::kCpu ? "" : StrCat(" --device ", DeviceName(device)));
  if (knobs.training.layout.world > 1) line += StrCat(" --ranks ", knobs.training.layout.world);
  if (knobs.training.precision != TrainingOptions{}.precision) line += " --precision " + knobs.training.precision;
  const std::string flags = FlagsBeyond({.micro_batch = 0, .sequence = 0, .dispatch = {}, .training = {}}, knobs);
  line += " " + flags;
  const int64_t tokens = base.micro_batch * base.sequence * knobs.dispatch.context_parallel,
                own = knobs.micro_batch * knobs.sequence * base.dispatch.context_parallel;
  if (own < tokens) line += StrCat(" --grad-accumulation ", DivCeil(tokens, own));
  return line;
}

}  // namespace weir
