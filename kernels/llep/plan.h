#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weir {

// Least-loaded expert parallelism (arXiv:2601.17111) over chunks of token leaves, as pure
// arithmetic on route counts. Every rank of an expert group computes the same plan from the same
// counts, and the backward pass replays it from the counts that the forward pass gathered.

// What a launch fixes, equal on every rank of the group.
struct LlepKnobs {
  int64_t experts = 1, ranks = 1;            // E, E_p
  int64_t top_k = 1, max_tokens = 0;         // k, N_max: the most tokens of any rank
  int64_t leaves = 16, unit_rows = 4096;     // G, U: part of the numerical definition
  int64_t chunk_tokens = 0, max_chunks = 0;  // c, K_max; 0 = no limit
  double lambda = 1.3, alpha = 1.1;       // plain below this max/mean load; cap over the mean load
  int64_t min_rows = 1, max_foreign = 0;  // m, F_max

  // Throws InvalidArgument listing every knob out of range.
  void Validate() const;
  // First expert of `rank` (its end is FirstExpert(rank + 1)): the first E mod E_p ranks own one
  // more.
  int64_t FirstExpert(int64_t rank) const;
  int64_t Owner(int64_t expert) const;
};

// How the leaves are dealt to chunks before any routing is known.
struct ChunkSizes {
  int64_t leaf_tokens = 0;  // n = ceil(N_max/G), of the largest leaf
  int64_t leaves = 1;       // q, per chunk
  int64_t chunks = 1;       // K = ceil(G/q)
  int64_t tokens = 0;       // c_eff = q*n
};
ChunkSizes ChunkSizesOf(const LlepKnobs& knobs);
// Why a chunk holds more tokens than asked; "" when it does not.
std::string ChunkNotice(const LlepKnobs& knobs);

// Bounds on the rows that a rank receives per chunk, whatever the routing.
int64_t PlainRowBound(const LlepKnobs& knobs);  // E_p*k*c_eff: everything comes here
int64_t BalancedRowBound(
    const LlepKnobs& knobs);  // ceil(alpha*k*c_eff) + E_p: a chunk whose plan met its cap
// What buffers are made for: chunks that would exceed it are cut further, down to single leaves.
//   min(E_p*k*c_eff, max(ceil(max(alpha, lambda)*k*c_eff) + E_p, E_p*k*n))
int64_t RowBound(const LlepKnobs& knobs);
int64_t UnitRowBound(const LlepKnobs& knobs);  // of the longest unit
int64_t MaxBorrowed(const LlepKnobs& knobs);   // experts that a rank ever borrows

// Rows [begin, end) of one expert in one leaf, counted over source ranks, then tokens, then slots:
// the smallest thing that moves, and one partial of a weight gradient.
struct LlepUnit {
  int64_t expert, leaf, begin, end;
  int64_t rank;        // that computes it
  int64_t round = -1;  // in which its weight-gradient partial goes to the owner; -1: it is at home
  int64_t rows() const { return end - begin; }
};

struct LlepChunk {
  int64_t first_leaf = 0, end_leaf = 0;
  std::vector<LlepUnit> units;    // by (expert, leaf, begin): canonical order
  std::vector<int64_t> received;  // rows per rank
  int64_t rounds = 0;
  bool balanced = false;  // assigned by load, and every rank within the cap

  int64_t rows() const;
};

struct LlepPlan {
  std::vector<LlepChunk> chunks;  // only chunks with rows
  std::vector<std::vector<int64_t>>
      foreign;  // per rank: the experts it borrows, in order of their slots

  // Slot of a borrowed expert, -1 when the rank does not borrow it.
  int64_t Slot(int64_t rank, int64_t expert) const;
};

// Routes from `source` to `expert` in `leaf`: counts[source rank][leaf][expert].
inline int64_t RouteCount(const LlepKnobs& knobs, std::span<const int64_t> counts, int64_t source,
                          int64_t leaf, int64_t expert) {
  return counts[static_cast<size_t>((source * knobs.leaves + leaf) * knobs.experts + expert)];
}

// Throws Internal when the counts exceed what the knobs allow.
LlepPlan MakeLlepPlan(const LlepKnobs& knobs, std::span<const int64_t> counts);

// Throws Internal naming the first promise that a plan breaks: every row of `counts` assigned once,
// to the owner or to a borrower; no expert borrowed twice by a rank, nor more than F_max; the row
// bounds; rounds in which each rank sends at most one partial and takes at most one, owners taking
// theirs in canonical order.
void CheckLlepPlan(const LlepKnobs& knobs, std::span<const int64_t> counts, const LlepPlan& plan);

// How many rows of a unit come from `source`, and which of that rank's routes of (leaf, expert) is
// the first.
struct UnitSlice {
  int64_t first = 0, rows = 0;
};
UnitSlice SliceOf(const LlepKnobs& knobs, std::span<const int64_t> counts, const LlepUnit& unit,
                  int64_t source);

}  // namespace weir
