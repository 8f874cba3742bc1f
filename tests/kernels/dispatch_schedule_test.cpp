// What ranks send each other and fold, against a simulation that moves routes one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/pipelined_llep/chunk_tables.h"
#include "kernels/pipelined_llep/fold_steps.h"

namespace weir {
namespace {

struct Route {
  int64_t expert, leaf, source, token, slot;
  auto operator<=>(const Route&) const = default;  // canonical order
};

struct Problem {
  const char* name;
  LlepKnobs knobs;
  std::vector<int64_t> tokens;  // per rank
  int hot;                      // of 10 routes to expert 0
};
void PrintTo(const Problem& one, std::ostream* out) { *out << one.name; }

std::vector<Problem> Problems() {
  const auto knobs = [](int64_t experts, int64_t ranks, int64_t chunk_tokens, double lambda) {
    return LlepKnobs{.experts = experts,
                     .ranks = ranks,
                     .top_k = 2,
                     .max_tokens = 40,
                     .leaves = 5,
                     .unit_rows = 3,
                     .chunk_tokens = chunk_tokens,
                     .lambda = lambda,
                     .alpha = 1,
                     .min_rows = 1,
                     .max_foreign = 2};
  };
  const double never = std::numeric_limits<double>::infinity();
  LlepKnobs many = knobs(6, 2, 0, 1.2);  // several exchanges a chunk
  many.max_tokens = 2000;
  return {{"at_home", knobs(4, 2, 0, never), {40, 40}, 1},
          {"chunks", knobs(6, 2, 16, never), {40, 31}, 3},
          {"borrowed", knobs(6, 2, 16, 1), {40, 40}, 7},
          {"uneven", knobs(7, 3, 8, 1), {40, 3, 0}, 6},
          {"one_expert", knobs(4, 4, 8, 1), {40, 40, 40, 40}, 10},
          {"many_units", many, {2000, 1999}, 5}};
}

int64_t ExpertOf(const Problem& p, int64_t rank, int64_t token, int64_t slot) {
  uint32_t state = static_cast<uint32_t>(rank * 7919 + token * 31 + slot) * 2654435761u;
  state ^= state >> 15;
  return state % 10 < static_cast<uint32_t>(p.hot) ? 0 : state / 10 % p.knobs.experts;
}

Attributes AttributesOf(const LlepKnobs& k) {
  return {{"experts", k.experts},       {"expert_parallel", k.ranks},
          {"max_tokens", k.max_tokens}, {"leaves", k.leaves},
          {"unit_rows", k.unit_rows},   {"chunk_tokens", k.chunk_tokens},
          {"llep_lambda", k.lambda},    {"llep_alpha", k.alpha},
          {"min_rows", k.min_rows},     {"max_foreign", k.max_foreign}};
}

// Every rank's view of one launch.
struct Launch {
  explicit Launch(const Problem& problem, RowOrder order = RowOrder::kCanonical)
      : p(problem), counts(Count()), plan(MakeLlepPlan(p.knobs, counts)) {
    for (int64_t rank = 0; rank < p.knobs.ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      shapes.emplace_back(AttributesOf(p.knobs), Dims{p.tokens[r], 8},
                          Dims{p.tokens[r], p.knobs.top_k}, Dims{1, 8, 4});
      chunks.emplace_back();
      for (const LlepChunk& chunk : plan.chunks)
        chunks.back().emplace_back(p.knobs, counts, chunk, rank);
      tables.emplace_back(shapes.back(), chunks.back(), rank, order);
    }
  }

  std::vector<int64_t> Count() const {
    const LlepKnobs& k = p.knobs;
    std::vector<int64_t> all(static_cast<size_t>(k.ranks * k.leaves * k.experts));
    for (int64_t rank = 0; rank < k.ranks; ++rank) {
      for (int64_t token = 0; token < p.tokens[static_cast<size_t>(rank)]; ++token) {
        for (int64_t slot = 0; slot < k.top_k; ++slot) {
          ++all[static_cast<size_t>((rank * k.leaves + token % k.leaves) * k.experts +
                                    ExpertOf(p, rank, token, slot))];
        }
      }
    }
    return all;
  }

  // A rank's routes at positions [first, first + tokens) of its leaf order.
  std::vector<Route> RoutesAt(int64_t rank, int64_t first, int64_t tokens) const {
    std::vector<Route> routes;
    int64_t position = 0;
    for (int64_t leaf = 0; leaf < p.knobs.leaves; ++leaf) {
      for (int64_t t = leaf; t < p.tokens[static_cast<size_t>(rank)];
           t += p.knobs.leaves, ++position) {
        if (position < first || position >= first + tokens) continue;
        for (int64_t slot = 0; slot < p.knobs.top_k; ++slot)
          routes.push_back({ExpertOf(p, rank, t, slot), leaf, rank, t, slot});
      }
    }
    return routes;
  }

  const Problem& p;
  std::vector<int64_t> counts;
  LlepPlan plan;
  std::vector<DispatchShape> shapes;
  std::vector<std::vector<ChunkRows>> chunks;  // [rank][chunk]
  std::vector<ChunkTables> tables;
};

// Calls body(from, to, expert) for every row that runs of a table map.
template <class Body>
void ForEachRow(const ChunkTables& tables, const ChunkTables::Runs& runs, const Body& body) {
  for (int64_t run = 0; run < runs.count; ++run) {
    const int64_t* at = tables.words().data() + runs.at + run * 4;
    for (int64_t r = 0; r < at[2]; ++r) body(at[0] + r, at[1] + r, at[3]);
  }
}

constexpr Route kNoRoute{-1, -1, -1, -1, -1};

// A rank's array of a chunk's rows: its own routes, sorted by expert, then placed.
std::vector<Route> Packed(const Launch& launch, size_t rank, size_t chunk) {
  const ChunkTables& tables = launch.tables[rank];
  const ChunkTables::Chunk& table = tables.chunks()[chunk];
  std::vector<Route> sorted =
      launch.RoutesAt(static_cast<int64_t>(rank), table.first, table.tokens);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Route& a, const Route& b) { return a.expert < b.expert; });
  const DispatchShape& shape = launch.shapes[rank];
  std::vector<Route> rows(static_cast<size_t>(shape.home_rows() + shape.rows), kNoRoute);
  size_t placed = 0;
  ForEachRow(tables, table.place, [&](int64_t from, int64_t to, int64_t) {
    EXPECT_EQ(rows.at(static_cast<size_t>(to)), kNoRoute) << "two routes at one place";
    rows.at(static_cast<size_t>(to)) = sorted.at(static_cast<size_t>(from));
    ++placed;
  });
  EXPECT_EQ(placed, sorted.size());
  return rows;
}

// Moves every message of a chunk between the ranks' arrays, those of a pair matched in order.
void Exchange(const Launch& launch, size_t chunk, bool arrival,
              std::vector<std::vector<Route>>& arrays) {
  const size_t ranks = arrays.size();
  const size_t exchanges = launch.tables[0].chunks()[chunk].exchanges.size();
  for (size_t x = 0; x < exchanges; ++x) {
    std::map<std::pair<size_t, size_t>, std::vector<RowMessage>> sent, taken;  // sender, taker
    for (size_t rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(launch.tables[rank].chunks()[chunk].exchanges.size(), exchanges);
      const RowExchange& exchange = launch.tables[rank].chunks()[chunk].exchanges[x];
      for (const RowMessage& m : arrival ? exchange.leaving : exchange.coming)
        sent[{rank, static_cast<size_t>(m.peer)}].push_back(m);
      for (const RowMessage& m : arrival ? exchange.coming : exchange.leaving)
        taken[{static_cast<size_t>(m.peer), rank}].push_back(m);
    }
    ASSERT_EQ(sent.size(), taken.size());
    for (const auto& [pair, messages] : sent) {
      EXPECT_NE(pair.first, pair.second) << "a rank sends to itself";
      ASSERT_EQ(messages.size(), taken[pair].size());
      for (size_t m = 0; m < messages.size(); ++m) {
        ASSERT_EQ(messages[m].rows, taken[pair][m].rows);
        std::copy_n(arrays[pair.first].begin() + messages[m].row, messages[m].rows,
                    arrays[pair.second].begin() + taken[pair][m].row);
      }
    }
  }
}

class DispatchSchedule : public testing::TestWithParam<Problem> {};

// `sorted` says whether computed rows are in order.
void ExpectEveryRouteThereAndBack(const Launch& launch, bool (*sorted)(const std::vector<Route>&)) {
  const size_t ranks = launch.tables.size();
  std::vector<Route> computed;
  for (size_t chunk = 0; chunk < launch.plan.chunks.size(); ++chunk) {
    std::vector<std::vector<Route>> arrays;
    for (size_t rank = 0; rank < ranks; ++rank) arrays.push_back(Packed(launch, rank, chunk));
    const std::vector<std::vector<Route>> packed = arrays;
    Exchange(launch, chunk, /*arrival=*/true, arrays);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const auto first = arrays[rank].begin() + launch.shapes[rank].home_rows();
      const std::vector<Route> rows(first, first + launch.chunks[rank][chunk].away_rows);
      EXPECT_TRUE(sorted(rows));
      computed.insert(computed.end(), rows.begin(), rows.end());
      size_t known = 0;
      ForEachRow(launch.tables[rank], launch.tables[rank].chunks()[chunk].experts,
                 [&](int64_t row, int64_t, int64_t expert) {
                   EXPECT_EQ(rows.at(static_cast<size_t>(row)).expert, expert);
                   ++known;
                 });
      EXPECT_EQ(known, rows.size());
      // What left must come back from there.
      std::fill(arrays[rank].begin(), first, kNoRoute);
    }
    Exchange(launch, chunk, /*arrival=*/false, arrays);
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (size_t row = 0; row < packed[rank].size(); ++row) {
        if (packed[rank][row] != kNoRoute) {
          EXPECT_EQ(arrays[rank][row], packed[rank][row]);
        }
      }
    }
  }
  std::vector<Route> all;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto routes = launch.RoutesAt(static_cast<int64_t>(rank), 0, launch.p.tokens[rank]);
    all.insert(all.end(), routes.begin(), routes.end());
  }
  std::sort(all.begin(), all.end());
  std::sort(computed.begin(), computed.end());
  EXPECT_EQ(computed, all);
}

TEST_P(DispatchSchedule, BringsEveryRouteToItsPlaceInCanonicalOrderAndBack) {
  ExpectEveryRouteThereAndBack(Launch(GetParam()), [](const std::vector<Route>& rows) {
    return std::is_sorted(rows.begin(), rows.end());
  });
}

// As the forward pass takes them: fewer messages, one per expert and peer in an exchange.
TEST_P(DispatchSchedule, BringsEveryRouteToItsPlaceBySourceAndBack) {
  const Launch launch(GetParam(), RowOrder::kBySource);
  ExpectEveryRouteThereAndBack(launch, [](const std::vector<Route>& rows) {
    return std::is_sorted(rows.begin(), rows.end(), [](const Route& a, const Route& b) {
      return std::tie(a.expert, a.source, a.leaf, a.token, a.slot) <
             std::tie(b.expert, b.source, b.leaf, b.token, b.slot);
    });
  });
  for (const ChunkTables& tables : launch.tables) {
    for (const ChunkTables::Chunk& chunk : tables.chunks()) {
      for (const RowExchange& exchange : chunk.exchanges) {
        const auto most = static_cast<size_t>(launch.p.knobs.experts * (launch.p.knobs.ranks - 1));
        EXPECT_LE(exchange.coming.size(), most);
        EXPECT_LE(exchange.leaving.size(), most);
      }
    }
  }
}

TEST_P(DispatchSchedule, TablesListTheUnitsAndFitTheirBound) {
  const Launch launch(GetParam());
  for (size_t rank = 0; rank < launch.tables.size(); ++rank) {
    const ChunkTables& tables = launch.tables[rank];
    EXPECT_LE(std::ssize(tables.words()), ChunkTables::MaxWords(launch.shapes[rank]));
    const int64_t first = launch.p.knobs.FirstExpert(static_cast<int64_t>(rank));
    const int64_t held = launch.p.knobs.FirstExpert(static_cast<int64_t>(rank) + 1) - first;
    for (size_t c = 0; c < tables.chunks().size(); ++c) {
      const auto& units = launch.chunks[rank][c].units;
      const int64_t* row = tables.words().data() + tables.chunks()[c].table.row;
      const int64_t* begin = tables.words().data() + tables.chunks()[c].table.first;
      for (size_t u = 0; u < units.size(); ++u) {
        EXPECT_EQ(row[u], units[u].first);
        EXPECT_EQ(row[u + 1], units[u].end());
        const int64_t expert = units[u].unit->expert - first;
        if (expert < 0 || expert >= held) continue;
        EXPECT_GE(static_cast<int64_t>(u), begin[expert]);
        EXPECT_LT(static_cast<int64_t>(u), begin[expert + 1]);
      }
    }
  }
}

// What the owner of each expert folds, step by step: all its units, in canonical order; and both
// ends of a step agree about the partial that travels.
TEST_P(DispatchSchedule, OwnersFoldEveryUnitInOrder) {
  const Launch launch(GetParam());
  const LlepKnobs& knobs = launch.p.knobs;
  for (size_t chunk = 0; chunk < launch.plan.chunks.size(); ++chunk) {
    std::vector<std::vector<FoldStep>> steps;
    for (int64_t rank = 0; rank < knobs.ranks; ++rank)
      steps.push_back(FoldSteps(knobs, launch.chunks[static_cast<size_t>(rank)][chunk], rank, 5));
    std::map<int64_t, std::vector<std::tuple<int64_t, int64_t>>> folded;  // expert -> (leaf, begin)
    for (size_t s = 0; s < steps[0].size(); ++s) {
      for (int64_t rank = 0; rank < knobs.ranks; ++rank) {
        ASSERT_EQ(steps[static_cast<size_t>(rank)].size(), steps[0].size());
        const FoldStep& step = steps[static_cast<size_t>(rank)][s];
        for (const auto& run : step.own) {
          for (const auto& unit : run)
            folded[unit.unit->expert].emplace_back(unit.unit->leaf, unit.unit->begin);
        }
        if (step.helped != nullptr) {
          EXPECT_EQ(steps[static_cast<size_t>(step.owner)][s].awaited, step.helped->unit);
        }
        if (step.awaited == nullptr) continue;
        EXPECT_EQ(steps[static_cast<size_t>(step.helper())][s].helped->unit, step.awaited);
        folded[step.awaited->expert].emplace_back(step.awaited->leaf, step.awaited->begin);
      }
    }
    std::map<int64_t, std::vector<std::tuple<int64_t, int64_t>>> all;
    for (const LlepUnit& unit : launch.plan.chunks[chunk].units)
      all[unit.expert].emplace_back(unit.leaf, unit.begin);
    EXPECT_EQ(folded, all);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DispatchSchedule, testing::ValuesIn(Problems()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DispatchSchedule, CasesBorrowAndCutChunks) {
  const std::vector<Problem> problems = Problems();  // launches refer to them
  int64_t rounds = 0, chunks = 0;
  for (const Problem& problem : problems) {
    const Launch launch(problem);
    chunks = std::max(chunks, std::ssize(launch.plan.chunks));
    for (const LlepChunk& chunk : launch.plan.chunks) rounds = std::max(rounds, chunk.rounds);
  }
  EXPECT_GT(rounds, 2);
  EXPECT_GT(chunks, 2);
}

// A rank that only helps spreads its own units over the rounds.
TEST(DispatchSchedule, HelpersComputeTheirOwnBetweenRounds) {
  const Problem problem{"",
                        {.experts = 2,
                         .ranks = 2,
                         .top_k = 1,
                         .max_tokens = 90,
                         .leaves = 1,
                         .unit_rows = 10,
                         .lambda = 1,
                         .alpha = 1,
                         .max_foreign = 1},
                        {90, 90},
                        8};
  const Launch launch(problem);
  const auto steps = FoldSteps(problem.knobs, launch.chunks[1][0], 1, 1);
  ASSERT_GT(steps.size(), 2u);
  EXPECT_NE(steps[0].helped, nullptr);
  ASSERT_EQ(steps[0].own.size(), 1u);
  EXPECT_LT(steps[0].own[0].size(), launch.chunks[1][0].units.size() / 2);
}

// Expert 0 is lent whole and comes first in canonical order; its owner computes expert 1 meanwhile.
TEST(DispatchSchedule, OwnersComputeOtherExpertsWhileTheyWait) {
  LlepPlan plan;
  plan.foreign = {{}, {0}};
  LlepChunk chunk;
  chunk.end_leaf = 1;
  chunk.rounds = 2;
  chunk.units = {{0, 0, 0, 10, 1, 0},
                 {0, 0, 10, 20, 1, 1},
                 {1, 0, 0, 10, 0},
                 {1, 0, 10, 20, 0},
                 {1, 0, 20, 30, 0}};
  const LlepKnobs knobs{.experts = 4, .ranks = 2, .leaves = 1, .unit_rows = 10};
  const ChunkRows rows(knobs, std::vector<int64_t>{20, 30, 0, 0, 0, 0, 0, 0}, chunk, 0);
  const auto steps = FoldSteps(knobs, rows, 0, 1);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].awaited, &chunk.units[0]);
  EXPECT_EQ(steps[1].awaited, &chunk.units[1]);
  for (const FoldStep& step : steps) {
    ASSERT_EQ(step.own.size(), 1u);
    EXPECT_EQ(step.own[0].size(), 1u);
  }
  const auto late = FoldSteps(knobs, rows, 0, 11);  // one unit is not worth a step
  EXPECT_TRUE(late[0].own.empty());
  ASSERT_EQ(late[1].own.size(), 1u);
  EXPECT_EQ(late[1].own[0].size(), 2u);
}

TEST(UnitTable, ListsRowsAndEachExpertsFirstUnit) {
  // Expert -1 is another rank's, 1 has no unit, 3 lies past this rank's three.
  const std::vector<RowBlock> units = {{-1, 0, 4}, {0, 4, 7}, {0, 7, 9}, {2, 9, 10}, {3, 10, 12}};
  std::vector<int64_t> words = {77};
  const UnitTable table = AppendUnits(units, 0, 3, words);
  EXPECT_EQ(words, (std::vector<int64_t>{77, 0, 4, 7, 9, 10, 12, 1, 3, 3, 4}));
  EXPECT_EQ(table.row, 1);
  EXPECT_EQ(table.first, 7);
  EXPECT_EQ(std::ssize(words) - 1, UnitTableWords(5, 3));
}

}  // namespace
}  // namespace weir
