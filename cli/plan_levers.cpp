#include "cli/plan_levers.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "graph/shape.h"

namespace weir {
namespace {

constexpr int64_t kStrip = 8192, kBucket = int64_t{1} << 25;
constexpr int64_t kMostShares = 64;  // of a head

// A quarter of the tokens, one leaf of them, and what the run has; largest first.
std::vector<int64_t> ChunkSizesOf(const PlanKnobs& knobs) {
  const int64_t tokens = knobs.micro_batch * knobs.sequence / knobs.dispatch.context_parallel;
  std::set<int64_t, std::greater<>> sizes = {DivCeil(tokens, 4), DivCeil(tokens, std::max<int64_t>(1, knobs.training.leaves)),
                                             knobs.dispatch.stream.chunk_tokens};
  sizes.erase(0);
  sizes.erase(tokens);
  return {sizes.begin(), sizes.end()};
}

// What of all that every rank would hold is spread: nothing, the optimizer's, weights, all.
std::string SharesOf(const PlanKnobs& knobs) {
  const DispatchFlags& dispatch = knobs.dispatch;
  return dispatch.shard_parameters == "none" && dispatch.shard_optimizer ? "optimizer" : dispatch.shard_parameters;
}

}  // namespace

std::vector<int64_t> DegreesOf(int64_t world, int64_t most) {
  std::vector<int64_t> degrees;
  for (int64_t ranks = 2; ranks <= std::min(world, most); ++ranks) {
    if (world % ranks == 0) degrees.push_back(ranks);
  }
  return degrees;
}

namespace {

// The flag that a lever is of; "": none that anyone fixes.
const char* FlagOf(Lever lever) {
  switch (lever) {
    case Lever::kMicroBatch: return "";
    case Lever::kContext: return "context-parallel";
    case Lever::kStrip: return "strip";
    case Lever::kRecompute: return "recompute";
    case Lever::kMoments: return "bucket";
    case Lever::kBoundaries: return "host-budget";
    case Lever::kChunks: return "chunk-tokens";
    case Lever::kExperts: return "expert-parallel";
    case Lever::kVocabulary: return "vocab-parallel";
    case Lever::kOptimizer: return "shard-parameters";
  }
  return "";
}

std::vector<PlanKnobs> AllLevels(Lever lever, const PlanKnobs& knobs, const ImportReport& model) {
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
      if (model.vocabulary > kStrip) add([&](PlanKnobs& k) { k.training.strip = std::max(knobs.training.strip, model.vocabulary); });
      add([&](PlanKnobs& k) {
        const int64_t given = knobs.training.strip;
        k.training.strip = given > 0 && (given < model.vocabulary || model.vocabulary <= kStrip) ? given : kStrip;
      });
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
      if (levels.back().training.offload.slots > 1) {
        add([&](PlanKnobs& k) {
          k.training.offload = levels[1].training.offload;
          k.training.offload.slots = 1;
        });
      }
      break;
    case Lever::kBoundaries:
      off.training.host_budget = 0;
      off.training.stash = TrainingOptions{}.stash;
      for (const char* stash : {"boundaries", "attention"}) {
        add([&](PlanKnobs& k) {
          k.training.host_budget = knobs.training.host_budget > 0 ? knobs.training.host_budget : kAllBoundaries;
          if (knobs.training.keep == "attention") k.training.stash = stash;  // else there is nothing but boundaries
        });
      }
      break;
    case Lever::kChunks:
      off.dispatch.stream.chunk_tokens = off.dispatch.stream.max_chunks = 0;
      for (const int64_t size : ChunkSizesOf(knobs)) {
        add([&](PlanKnobs& k) { k.dispatch.stream.chunk_tokens = size, k.dispatch.stream.max_chunks = knobs.dispatch.stream.max_chunks; });
      }
      break;
    case Lever::kExperts:
      off.dispatch.expert_parallel = 1;
      for (const int64_t ranks : DegreesOf(knobs.training.layout.world, model.expert_count)) add([&](PlanKnobs& k) { k.dispatch.expert_parallel = ranks; });
      break;
    case Lever::kVocabulary:
      off.dispatch.vocabulary_parallel = 1;
      off.training.head_gradient = TrainingOptions{}.head_gradient;
      off.training.move = TrainingOptions{}.move;
      for (const auto& [gradient, move] : {std::pair("whole", "weights"), {"shard", "activations"}, {"shard", "weights"}}) {
        for (const int64_t ranks : DegreesOf(knobs.training.layout.world, kMostShares)) {
          add([&](PlanKnobs& k) { k.dispatch.vocabulary_parallel = ranks, k.training.head_gradient = gradient, k.training.move = move; });
        }
      }
      break;
    case Lever::kOptimizer:
      off.dispatch.shard_optimizer = false;
      off.dispatch.shard_parameters = DispatchFlags{}.shard_parameters;
      if (knobs.training.layout.world == 1) break;
      add([](PlanKnobs& k) { k.dispatch.shard_optimizer = true; });
      for (const char* what : {"weights", "all"}) add([&](PlanKnobs& k) { k.dispatch.shard_parameters = what; });
      break;
  }
  if (levels.empty()) levels.push_back(off);
  return levels;
}

}  // namespace

std::vector<PlanKnobs> LevelsOf(Lever lever, const PlanKnobs& knobs, const ImportReport& model, const FlagNames& fixed) {
  const FlagNames own = fixed.contains(FlagOf(lever)) ? FlagNames{FlagOf(lever)} : FlagNames{};
  std::vector<PlanKnobs> levels;
  for (PlanKnobs& level : AllLevels(lever, knobs, model)) {
    if (!ChangedFlags(own, knobs, level).empty()) continue;
    KeepFlags(fixed, knobs, level);
    levels.push_back(level);
  }
  return levels.empty() ? std::vector{knobs} : levels;
}

size_t LevelIn(Lever lever, const std::vector<PlanKnobs>& levels, const PlanKnobs& knobs) {
  for (size_t i = 0; i + 1 < levels.size(); ++i) {
    const PlanKnobs& level = levels[i];
    const bool here = lever == Lever::kMicroBatch   ? level.micro_batch <= knobs.micro_batch
                      : lever == Lever::kContext    ? level.dispatch.context_parallel >= knobs.dispatch.context_parallel
                      : lever == Lever::kStrip      ? level.training.strip == knobs.training.strip
                      : lever == Lever::kRecompute  ? level.training.recompute == knobs.training.recompute && level.training.keep == knobs.training.keep
                      : lever == Lever::kMoments    ? level.training.offload.bucket == knobs.training.offload.bucket && level.training.offload.slots == knobs.training.offload.slots
                      : lever == Lever::kBoundaries ? level.training.host_budget == knobs.training.host_budget && level.training.stash == knobs.training.stash
                      : lever == Lever::kChunks     ? level.dispatch.stream.chunk_tokens == knobs.dispatch.stream.chunk_tokens
                      : lever == Lever::kExperts    ? level.dispatch.expert_parallel >= knobs.dispatch.expert_parallel
                      : lever == Lever::kVocabulary ? level.dispatch.vocabulary_parallel >= knobs.dispatch.vocabulary_parallel &&
                                                          level.training.head_gradient == knobs.training.head_gradient &&
                                                          (level.training.move == knobs.training.move || knobs.training.move == "auto")
                                                    : SharesOf(level) == SharesOf(knobs);
    if (here) return i;
  }
  return levels.size() - 1;
}

}  // namespace weir
