#include <algorithm>
#include <set>
#include <tuple>

#include "graph/error.h"
#include "kernels/llep/plan.h"

namespace weir {
namespace {

class PlanChecker {
 public:
  PlanChecker(const LlepKnobs& knobs, std::span<const int64_t> counts, const LlepPlan& plan)
      : knobs_(knobs), counts_(counts), plan_(plan) {}

  void Run() {
    CheckForeign();
    int64_t leaf = 0;
    for (const LlepChunk& chunk : plan_.chunks) {
      Require(chunk.first_leaf >= leaf && chunk.end_leaf > chunk.first_leaf &&
                  chunk.end_leaf <= knobs_.leaves,
              "chunks overlap or leave the leaves");
      leaf = chunk.end_leaf;
      CheckUnits(chunk);
      CheckRows(chunk);
      CheckRounds(chunk);
    }
    Require(rows_ == Total(), StrCat(rows_, " rows are assigned, ", Total(), " were routed"));
  }

 private:
  static void Require(bool good, const char* what) {
    if (!good) Fail(what);
  }
  static void Require(bool good, const std::string& what) {
    if (!good) Fail(what);
  }
  [[noreturn]] static void Fail(const std::string& what) {
    throw Error(ErrorCode::kInternal, "the expert dispatch plan is wrong: " + what);
  }
  int64_t Total() const {
    int64_t total = 0;
    for (const int64_t count : counts_) total += count;
    return total;
  }

  void CheckForeign() {
    Require(std::ssize(plan_.foreign) == knobs_.ranks, "ranks without a list of borrowed experts");
    for (int64_t rank = 0; rank < knobs_.ranks; ++rank) {
      const auto& slots = plan_.foreign[static_cast<size_t>(rank)];
      Require(std::ssize(slots) <= knobs_.max_foreign,
              StrCat("rank ", rank, " borrows ", slots.size(), " experts"));
      Require(std::set<int64_t>(slots.begin(), slots.end()).size() == slots.size(),
              StrCat("rank ", rank, " borrows an expert twice"));
      for (const int64_t expert : slots) {
        Require(expert >= 0 && expert < knobs_.experts && knobs_.Owner(expert) != rank,
                StrCat("rank ", rank, " borrows expert ", expert, ", its own or unknown"));
      }
    }
  }

  // Canonical order, no gap, cuts every unit_rows, only owners and borrowers.
  void CheckUnits(const LlepChunk& chunk) {
    const int64_t leaves = chunk.end_leaf - chunk.first_leaf;
    std::vector<int64_t> reached(static_cast<size_t>(knobs_.experts * leaves));  // rows
    const LlepUnit* last = nullptr;
    for (const LlepUnit& unit : chunk.units) {
      const auto at = [](const LlepUnit& u) { return std::tuple(u.expert, u.leaf, u.begin); };
      Require(last == nullptr || at(*last) < at(unit), "units are not in canonical order");
      last = &unit;
      Require(unit.leaf >= chunk.first_leaf && unit.leaf < chunk.end_leaf && unit.expert >= 0 &&
                  unit.expert < knobs_.experts,
              "a unit lies outside its chunk");
      if (unit.rank != knobs_.Owner(unit.expert) && plan_.Slot(unit.rank, unit.expert) < 0) {
        Fail(StrCat("rank ", unit.rank, " computes expert ", unit.expert, " without having it"));
      }
      int64_t& end =
          reached[static_cast<size_t>(unit.expert * leaves + unit.leaf - chunk.first_leaf)];
      Require(unit.begin == end && unit.begin % knobs_.unit_rows == 0 && unit.rows() >= 1 &&
                  unit.rows() <= knobs_.unit_rows,
              "units do not cut an expert's rows as defined");
      end = unit.end;
      rows_ += unit.rows();
    }
    for (int64_t place = 0; place < std::ssize(reached); ++place) {
      const int64_t expert = place / leaves, leaf = chunk.first_leaf + place % leaves;
      int64_t routed = 0;
      for (int64_t source = 0; source < knobs_.ranks; ++source)
        routed += RouteCount(knobs_, counts_, source, leaf, expert);
      if (const int64_t end = reached[static_cast<size_t>(place)]; routed != end) {
        Fail(StrCat("expert ", expert, " has ", routed, " rows in leaf ", leaf, ", ", end,
                    " are assigned"));
      }
    }
  }

  void CheckRows(const LlepChunk& chunk) const {
    std::vector<int64_t> received(static_cast<size_t>(knobs_.ranks));
    for (const LlepUnit& unit : chunk.units)
      received[static_cast<size_t>(unit.rank)] += unit.rows();
    Require(received == chunk.received, "the rows per rank do not add up");
    const int64_t most = *std::max_element(received.begin(), received.end());
    Require(most <= RowBound(knobs_),
            StrCat("a rank receives ", most, " rows, buffers hold ", RowBound(knobs_)));
    Require(most <= PlainRowBound(knobs_), StrCat(most, " rows exceed E_p*k*c_eff"));
    Require(!chunk.balanced || most <= BalancedRowBound(knobs_),
            StrCat(most, " rows exceed ceil(alpha*k*c_eff) + E_p"));
  }

  void CheckRounds(const LlepChunk& chunk) const {
    std::vector<bool> sends(static_cast<size_t>(knobs_.ranks * chunk.rounds));
    std::vector<int64_t> taken(static_cast<size_t>(knobs_.ranks), -1);
    for (const LlepUnit& unit : chunk.units) {
      const int64_t owner = knobs_.Owner(unit.expert);
      Require((unit.rank == owner) == (unit.round < 0),
              "a unit at home has a round, or one away has none");
      if (unit.rank == owner) continue;
      Require(unit.round < chunk.rounds, "a unit returns after the last round");
      const auto turn = static_cast<size_t>(unit.rank * chunk.rounds + unit.round);
      Require(!sends[turn], "a rank sends twice in a round");
      sends[turn] = true;
      Require(unit.round > taken[static_cast<size_t>(owner)],
              "partials reach an owner out of order");
      taken[static_cast<size_t>(owner)] = unit.round;
    }
  }

  const LlepKnobs& knobs_;
  std::span<const int64_t> counts_;
  const LlepPlan& plan_;
  int64_t rows_ = 0;
};

}  // namespace

void CheckLlepPlan(const LlepKnobs& knobs, std::span<const int64_t> counts, const LlepPlan& plan) {
  PlanChecker(knobs, counts, plan).Run();
}

}  // namespace weir
