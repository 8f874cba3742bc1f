#pragma once
#include <cstdint>
#include <vector>

#include "cli/plan_search.h"
#include "graph_passes/import_report.h"

namespace weir {

// Knobs that trade time for memory, each with levels from fastest to thriftiest: micro-batches halved; more
// ranks that share a sequence; strip; recompute keeping attention, then nothing; moments on the host, through two slots,
// then one; boundaries, then kept attention on the host; fewer tokens per chunk of experts; more ranks that share the
// experts, then the head, its gradient whole, then shared; the optimizer of the rest spread over ranks, then its weights,
// then its gradients.
enum class Lever : uint8_t { kMicroBatch, kContext, kStrip, kRecompute, kMoments, kBoundaries, kChunks, kExperts, kVocabulary, kOptimizer };
inline constexpr Lever kLevers[] = {Lever::kMicroBatch, Lever::kContext, Lever::kStrip, Lever::kRecompute, Lever::kMoments, Lever::kBoundaries, Lever::kChunks,
                                     Lever::kExperts, Lever::kVocabulary, Lever::kOptimizer};
inline constexpr int64_t kAllBoundaries = int64_t{1} << 50;  // a host budget that holds whatever there is

// Divisors of the number of ranks above 1, up to `most`.
std::vector<int64_t> DegreesOf(int64_t world, int64_t most);

// The settings of one lever, fastest first; the first leaves the knobs as a run without the flag has them. Those of `fixed` stay as
// they are in `knobs`: a lever whose flag is among them has one setting, or where several flags make it, what the others do. How many there are does not
// depend on other levers, so some may be alike.
std::vector<PlanKnobs> LevelsOf(Lever lever, const PlanKnobs& knobs, const ImportReport& model, const FlagNames& fixed = {});

// Where `knobs` stands among the levels; a setting between two counts as the first at least as thrifty.
size_t LevelIn(Lever lever, const std::vector<PlanKnobs>& levels, const PlanKnobs& knobs);

}  // namespace weir
