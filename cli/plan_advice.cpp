#include "cli/plan_advice.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <span>

#include "graph/error.h"
#include "graph_passes/import_report.h"
#include "graph_passes/shard_context.h"

namespace weir {
namespace {

constexpr Lever kOneMicroBatch[] = {Lever::kOptimizer, Lever::kVocabulary};
constexpr int kMostRounds = 8;        // of choosing anew what is thriftiest at a longer length
constexpr double kFaster = 0.999;     // by less is rounding
constexpr int64_t kRounding = int64_t{1} << 20;  // of printed host budgets

// What a host budget of all came to.
int64_t HeldOnHost(const Candidate& candidate) {
  int64_t bytes = 0;
  for (const char* term : {"boundaries", "attention"}) {
    const auto held = candidate.host_ledger.find(term);
    if (held != candidate.host_ledger.end()) bytes += held->second;
  }
  return DivCeil(bytes, kRounding) * kRounding;
}

class Chooser {
 public:
  // `keep_floor`: levers go no lower than `from` has them; else as low as off.
  Chooser(PlanSearch& search, const PlanKnobs& from, bool keep_floor, const FlagNames& fixed)
      : search_(search), from_(from), fixed_(fixed), model_(DescribeModel(search.canonical())) {
    for (const Lever lever : kLevers) {
      const auto levels = LevelsOf(lever, from, model_, fixed_);
      const size_t now = LevelIn(lever, levels, from);
      floor_[lever] = keep_floor ? now : lever == Lever::kMicroBatch ? now : 0;
      most_[lever] = std::max(floor_[lever], levels.size() - 1);
    }
  }

  const Candidate* Choose() {
    DropRefused();
    Levels level = most_;
    level[Lever::kMicroBatch] = floor_[Lever::kMicroBatch];
    Allow(level);
    if (!At(level).fits && !Thriftiest(level)) return nullptr;
    for (const Lever lever : ByCost()) Relax(lever, level);
    return Finish(*Fastest(At(level)));
  }

  // The longest sequence at what is thriftiest, which changes with the length.
  const Candidate* Longest(int64_t step) {
    DropRefused();
    const Candidate* best = nullptr;
    Levels level = most_;
    Allow(level);
    const int64_t world = from_.training.layout.world;
    for (const int64_t ranks : DegreesOf(world, world)) step = std::lcm(step, SequenceUnit(search_.canonical(), ranks));  // whatever the degree
    from_.sequence = step;
    for (int round = 0; round < kMostRounds && (At(level).fits || Thriftiest(level)); ++round) {
      const auto knobs_of = [&](int64_t sequence) {
        Chooser longer = *this;
        longer.from_.sequence = sequence;
        return longer.At(level).knobs;
      };
      best = search_.LongestSequence(knobs_of, step, from_.sequence);
      from_.sequence = best->knobs.sequence + step;
      if (from_.sequence > kLongestSearched) break;
    }
    return best;
  }

 private:
  using Levels = std::map<Lever, size_t>;

  // By how much the budgets are exceeded, as shares of them; what is refused comes last.
  double Excess(const Candidate& one) const {
    if (!one.refused.empty()) return std::numeric_limits<double>::infinity();
    const Budgets& budgets = search_.budgets();
    const auto over = [](int64_t bytes, int64_t budget) { return budget < 0 ? 0 : std::max(0.0, static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(1, budget)) - 1); };
    return over(one.device_bytes + budgets.beside_arena, budgets.device) + over(one.host_bytes, budgets.host);
  }

  // The fastest level that fits; of equals the one with least to do.
  void Relax(Lever lever, Levels& level) {
    Levels other = level;
    double best = std::numeric_limits<double>::infinity();
    for (size_t l = floor_[lever]; l <= most_[lever]; ++l) {
      other[lever] = l;
      const Candidate& one = At(other);
      if (one.fits && one.seconds < best * kFaster) best = one.seconds, level[lever] = l;
    }
  }

  // From all levers at their thriftiest, lever by lever the level that exceeds least, until it fits or none helps:
  // thrift is not all of one piece, for more ranks that share experts need larger buffers, and what leaves the device
  // fills the host. Whether it fits.
  bool Thriftiest(Levels& level) {
    level = most_;
    Allow(level);
    for (double least = Excess(At(level)); least > 0;) {
      const double before = least;
      for (const Lever lever : kLevers) {
        Levels other = level;
        for (size_t l = floor_[lever]; l <= most_[lever] && least > 0; ++l) {
          other[lever] = l;
          const double excess = Excess(At(other));
          if (excess < least) least = excess, level[lever] = l;
        }
      }
      if (least >= before) break;
    }
    return At(level).fits;
  }

  // Levels that the model or the layout refuses together: one lever gives way, the last first. Both that may ask for one
  // micro-batch a step do before sequences are held by fewer ranks, which would be one lever too.
  void Allow(Levels& level) {
    if (At(level).refused.empty()) return;
    for (auto lever = std::rbegin(kLevers); lever != std::rend(kLevers); ++lever) {
      if (*lever == Lever::kContext && GiveWay(level, kOneMicroBatch)) return;
      if (GiveWay(level, {&*lever, 1})) return;
    }
  }

  // Lowers each of `levers` until what they make together is allowed.
  bool GiveWay(Levels& level, std::span<const Lever> levers) {
    if (levers.empty()) return At(level).refused.empty();
    for (Levels other = level; other[levers[0]] > floor_[levers[0]];) {
      --other[levers[0]];
      Levels rest = other;
      if (!GiveWay(rest, levers.subspan(1))) continue;
      level = rest;
      return true;
    }
    return false;
  }

  PlanKnobs KnobsAt(const Levels& level) const {
    PlanKnobs knobs = from_;
    for (const auto& [lever, l] : level) {
      const auto levels = LevelsOf(lever, knobs, model_, fixed_);
      knobs = levels[std::min(l, levels.size() - 1)];
    }
    return knobs;
  }
  // Where everything was to go to the host and it is too small, what it can hold.
  const Candidate& At(const Levels& level) {
    const Candidate& one = search_.Try(KnobsAt(level));
    const int64_t room = search_.budgets().host;
    if (room < 0 || !one.refused.empty() || one.host_bytes <= room || one.knobs.training.host_budget != kAllBoundaries) return one;
    PlanKnobs less = one.knobs;
    less.training.host_budget = (HeldOnHost(one) - (one.host_bytes - room)) / kRounding * kRounding - kRounding;
    if (less.training.host_budget <= 0) return one;
    const Candidate& part = search_.Try(less);
    return part.refused.empty() ? part : one;
  }
  const Candidate& Alone(Lever lever, size_t l) {
    auto level = floor_;
    level[lever] = l;
    return At(level);
  }

  // Of all that fit on the way, `chosen` unless another is faster by more than rounding.
  const Candidate* Fastest(const Candidate& chosen) const {
    const Candidate* best = &chosen;
    for (const auto& one : search_.tried()) {
      if (!one->fits || one->knobs.sequence != from_.sequence || !ChangedFlags(fixed_, from_, one->knobs).empty()) continue;
      if (one->seconds < best->seconds * kFaster) best = one.get();
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
      knobs.training.host_budget = HeldOnHost(chosen);
      if (const Candidate& exact = search_.Try(knobs); exact.fits) best = &exact;
    }
    const int64_t room = search_.budgets().device - search_.budgets().beside_arena - best->device_bytes;
    if (knobs.training.offload.bucket > 0 && !fixed_.contains("resident") && search_.budgets().device >= 0 && room > kRounding) {
      knobs = best->knobs;
      knobs.training.offload.resident += room / kRounding * kRounding;
      if (const Candidate& resident = search_.Try(knobs); resident.fits && resident.seconds < best->seconds) best = &resident;
    }
    return best;
  }

  PlanSearch& search_;
  PlanKnobs from_;
  FlagNames fixed_;
  ImportReport model_;
  Levels floor_, most_;
};

}  // namespace

std::string FlagsOf(const PlanKnobs& base, const Candidate& candidate) {
  PlanKnobs knobs = candidate.knobs;
  if (knobs.training.host_budget == kAllBoundaries) knobs.training.host_budget = HeldOnHost(candidate);
  return FlagsBeyond(base, knobs);
}

std::vector<Advice> AdviseKnobs(PlanSearch& search, const FlagNames& fixed) {
  const Candidate& base = search.Try(search.base());
  const ImportReport model = DescribeModel(search.canonical());
  std::vector<Advice> advice;
  std::set<std::string> told;
  for (const Lever lever : kLevers) {
    const auto levels = LevelsOf(lever, search.base(), model, fixed);
    for (size_t l = LevelIn(lever, levels, search.base()) + 1; l < levels.size(); ++l) {
      const Candidate& one = search.Try(levels[l]);
      const std::string flags = FlagsOf(search.base(), one);
      if (!one.refused.empty() || one.device_bytes >= base.device_bytes || !told.insert(flags).second) continue;
      advice.push_back({.candidate = &one,
                        .flags = flags,
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

const Candidate* FindFitting(PlanSearch& search, const PlanKnobs& from) { return Chooser(search, from, /*keep_floor=*/true, {}).Choose(); }

const Candidate* ChooseKnobs(PlanSearch& search) { return Chooser(search, search.base(), /*keep_floor=*/false, search.fixed()).Choose(); }

const Candidate* ChooseLongest(PlanSearch& search, int64_t step) {
  PlanKnobs base = search.base(), shortest = base;
  shortest.sequence = std::lcm(step, base.training.layout.world);
  search.Rebase(shortest);  // shorter sequences than the base's are not the more micro-batches
  const Candidate* longest = Chooser(search, base, /*keep_floor=*/false, search.fixed()).Longest(step);
  if (longest == nullptr) {
    search.Rebase(base);
    return nullptr;
  }
  // One sequence of that length, over the ranks that it takes.
  base.sequence = longest->knobs.sequence;
  base.micro_batch = longest->knobs.micro_batch;
  base.dispatch.context_parallel = longest->knobs.dispatch.context_parallel;
  search.Rebase(base);
  return longest;
}

std::string TrainCommandLine(const std::string& begin, const PlanKnobs& base, const PlanKnobs& knobs, const FlagNames& given) {
  const std::string line = begin + " " + FlagsBeyond({.micro_batch = 0, .sequence = 0, .dispatch = {}, .training = {}}, knobs, given);
  const int64_t tokens = base.grad_accumulation * base.micro_batch * base.sequence * knobs.dispatch.context_parallel,
                own = knobs.micro_batch * knobs.sequence * base.dispatch.context_parallel;
  return own < tokens ? StrCat(line, " --grad-accumulation ", DivCeil(tokens, own)) : line;
}

}  // namespace weir
