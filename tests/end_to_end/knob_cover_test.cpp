// Every pair of knobs, on every family: no bit of losses, gradients and parameters after three steps differs from the twin's
// at the same ranks, expert and context groups; and the twin is PyTorch's. WEIR_KNOBS=all covers the knobs once for each layout
// and family.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>

#include "backend/plan.h"
#include "tests/end_to_end/knob_cases.h"
#include "tests/end_to_end/rank_launch.h"

namespace weir {
namespace {

// Bytes of all layer boundaries of a rank.
int64_t BoundaryBytes(const KnobCase& k) {
  static std::map<std::tuple<std::string, int64_t, int64_t>, int64_t> known;
  int64_t& bytes = known[{k.family, k.world, k.context_parallel}];
  if (bytes > 0) return bytes;
  const StoredBatch& batch = Stored(k.family);
  TrainingOptions options;
  options.host_budget = int64_t{1} << 40;
  const auto graph = Clone(*batch.graph);
  PassManager passes;
  BuildTrainingGraph(*graph, options, passes);
  SpecializeShapes(*graph, batch.rows * k.context_parallel / k.world, batch.length / k.context_parallel);
  PlaceOnHost(*graph, options, passes);
  return bytes = MakePlan(*graph, DeviceKind::kCpu).host_arena_bytes;
}

Launch LaunchOf(const KnobCase& k) {
  const int64_t budget = k.host == "none" ? 0 : k.host == "half" ? BoundaryBytes(k) / 2 : int64_t{1} << 40;
  return {.family = k.family,
          .world = k.world,
          .expert_parallel = k.expert_parallel,
          .context_parallel = k.context_parallel,
          .unit_rows = kCoverUnitRows,
          .micro_batches = k.micro_batches,
          .weight_of = k.weighted ? [](int64_t position) { return static_cast<float>(position * 5 % 9) / 4; } : std::function<float(int64_t)>(),
          .knobs = [=](TrainingOptions& options) { Apply(k, budget, options); }};
}

// Equal twins run once. Where they stand for the stored batch their first step is PyTorch's.
const Outcome& Twin(const KnobCase& knobs) {
  static std::map<std::string, Outcome> known;
  const KnobCase twin = TwinOf(knobs);
  const auto [it, isnew] = known.try_emplace(Name(twin));
  if (!isnew) return it->second;
  it->second = RunLaunch(LaunchOf(twin));
  if (twin.micro_batches > 1 || twin.weighted) return it->second;
  Launch first = LaunchOf(twin);
  first.steps = 1;
  ExpectReference(RunLaunch(first), twin.family);
  return it->second;
}

void ExpectBitsOfTheTwin(const KnobTable& table) {
  const std::vector<KnobCase> cases = CoverKnobs(table);
  EXPECT_GE(cases.size(), table.chunks.size() * std::max(table.families.size(), table.buckets.size()));
  for (const KnobCase& knobs : cases) {
    SCOPED_TRACE(Name(knobs));
    const Outcome& twin = Twin(knobs);
    ExpectSame(RunLaunch(LaunchOf(knobs)), twin, "against the twin");
  }
}

TEST(KnobCover, NoPairOfKnobsChangesABit) {
  const char* extent = std::getenv("WEIR_KNOBS");
  if (extent == nullptr || std::string(extent) != "all") return ExpectBitsOfTheTwin({});
  const KnobTable all;
  for (const std::string& family : all.families) {
    for (const int64_t world : all.worlds) {
      for (const int64_t experts : all.expert_parallel) {
        for (const int64_t context : all.context_parallel) {
          if (world % experts != 0 || world % context != 0) continue;
          KnobTable one = all;
          one.families = {family};
          one.worlds = {world};
          one.expert_parallel = {experts};
          one.context_parallel = {context};
          std::erase_if(one.vocabulary_parallel, [&](int64_t ranks) { return world % ranks != 0; });
          if (world == 1) one.heads = {"whole"}, one.shard_optimizer = {0}, one.shard_parameters = {"none"};
          if (experts == 1) one.alphas = {1.1};
          ExpectBitsOfTheTwin(one);
        }
      }
    }
  }
}

// Six ranks that share four heads by three: each knob beside each other.
TEST(KnobCover, NoPairOfKnobsChangesABitWhereRanksShareHeads) {
  ExpectBitsOfTheTwin({.families = {"gpt_oss", "deepseek_v3"},
                       .worlds = {6},
                       .expert_parallel = {1, 3},
                       .context_parallel = {3, 6},
                       .vocabulary_parallel = {1, 3},
                       .chunks = {0, 1, 5},
                       .alphas = {1.1, 1},
                       .strips = {64, 130},
                       .buckets = {0, 1000}});
}

// Other units are another rounding: it is seen.
TEST(KnobCover, ADifferenceWouldBeSeen) {
  const KnobCase knobs = TwinOf(CoverKnobs({}).front());
  Launch launch = LaunchOf(knobs);
  const auto apply = launch.knobs;
  launch.knobs = [=](TrainingOptions& options) {
    apply(options);
    options.unit_rows = 4096;
  };
  EXPECT_NE(RunLaunch(launch).gradients, Twin(knobs).gradients);
}

// 3 x 2 values of the first factors, one pair of them forbidden: five rows at least.
TEST(KnobCover, PairsAreCovered) {
  const std::vector<size_t> sizes = {3, 2, 2};
  const PairAllowed allowed = [](size_t f, size_t v, size_t g, size_t w) { return !(f == 0 && g == 1 && v == 2 && w == 1); };
  const std::vector<CoverRow> rows = CoverPairs(sizes, allowed);
  EXPECT_EQ(UncoveredPairs(rows, sizes, allowed), 0u);
  EXPECT_GE(rows.size(), 5u);
  EXPECT_LE(rows.size(), 7u);
  for (const CoverRow& row : rows) EXPECT_FALSE(row[0] == 2 && row[1] == 1);
  EXPECT_GT(UncoveredPairs({rows.begin() + 1, rows.end()}, sizes, allowed), 0u);  // the count can tell
  EXPECT_EQ(CoverPairs(sizes, allowed), rows);
  EXPECT_THROW(CoverPairs({2, 1, 1}, [](size_t f, size_t v, size_t g, size_t) { return f != 0 || v != 0 || g != 2; }), Error);
}

}  // namespace
}  // namespace weir
