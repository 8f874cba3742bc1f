#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backend/communicator.h"
#include "tests/kernels/run_op.h"

namespace weir {

// Tokens of an expert group's ranks, their routes, and one layer of experts.
struct DispatchProblem {
  int64_t h = 8, i = 6, e = 4, k = 2, leaves = 4, unit_rows = 3;
  bool bias = true;
  Array<float> gate_up = {}, down = {}, gate_up_bias = {}, down_bias = {};  // of all experts
  struct Rank {
    Array<float> x, ids, weights, dy;
  };
  std::vector<Rank> ranks = {};

  int64_t tokens(size_t rank) const { return ranks[rank].x.dims[0]; }
  int64_t max_tokens() const;
};

using Routing = std::function<int64_t(int64_t rank, int64_t token, int64_t slot)>;
// Random values, ids from `routing`; `tokens` per rank.
DispatchProblem MakeProblem(DispatchProblem sizes, const std::vector<int64_t>& tokens,
                            const Routing& routing);

struct DispatchResult {
  Array<float> y, counts, dx, dweights;
  std::vector<Array<float>> gradients;  // gate_up, down, then biases if any: this rank's experts
};

// What crossed the ranks, measured at one rank's communicator.
struct Traffic {
  int64_t most_rows = 0;                 // of width h that one exchange brought
  std::map<std::string, int64_t> calls;  // by collective op
  std::vector<std::string> order;        // starts of exchanges, and "wait"
};

struct DispatchRun {
  std::vector<DispatchResult> ranks;
  std::vector<Traffic> traffic;
};

// PipelinedLlep and its gradient on one thread per rank, over poisoned arenas; accumulators start
// at `start`. `knobs` adds to the attributes.
DispatchRun RunDispatch(const DispatchProblem& problem, const Attributes& knobs, float start = 0);

// The same on one GPU per rank, with `activations` (x, dy, gate_up, down) of that type: a run for
// each set of knobs.
std::vector<std::vector<DispatchResult>> RunDispatchOnGpus(const DispatchProblem& problem,
                                                           const std::vector<Attributes>& knobs,
                                                           float start, DType activations);

// The plain ops on all tokens at once, arranged so that canonical order is that of the ranks: each
// rank's tokens are filled up to whole leaves with tokens of one more expert.
std::vector<DispatchResult> RunTwin(const DispatchProblem& problem, float start = 0);
// The float64 reference likewise, without filling.
std::vector<DispatchResult> RunTruth(const DispatchProblem& problem, float start = 0);

// Equal bytes in everything but counts.
void ExpectSameBits(const std::vector<DispatchResult>& got, const std::vector<DispatchResult>& want,
                    const std::string& what);

}  // namespace weir
