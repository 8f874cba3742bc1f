#pragma once
#include <string>
#include <vector>

#include "backend/communicator.h"
#include "tests/kernels/run_op.h"

namespace weir {

// A vocabulary head on several ranks, each with its own tokens.
struct HeadProblem {
  int64_t vocabulary = 307, channels = 12, leaf = 64;
  std::vector<int64_t> tokens = {9, 5, 7, 4};  // of each rank
  bool weighted = false;                       // every fourth token has weight 0, the others 0.25 to 1.75
  int64_t world() const { return std::ssize(tokens); }
};

// How it runs: the weight spread over runs of `ranks` ranks.
struct HeadRun {
  int64_t ranks = 1, strip = 8192;
  int outputs = 3;
  bool accumulate = true;
  bool shard_gradient = false;
  std::string move = "weights";
  int64_t share = 0;  // ranks hold runs of so many columns; 0: of leaves
};

struct HeadResult {
  double loss = 0;
  Array<float> dx, dw;
  int64_t arena_bytes = 0;
};

// x, the whole weight, labels on every shard (every fifth ignored), scale, accumulator and, where weighted, weights of one rank; x and
// weight are numbers of `activations`.
Inputs HeadInputs(const HeadProblem& problem, int64_t rank, DType activations = DType::kFloat32);
// One rank's part of the weight and attributes of a run.
Inputs ShardedInputs(const HeadProblem& problem, const HeadRun& run, int64_t rank, DType activations = DType::kFloat32);
Attributes HeadAttributes(const HeadProblem& problem, const HeadRun& run);
// RingDtp on this rank and its CPU; poisoned arena.
HeadResult RunHead(const Inputs& inputs, int outputs, const Attributes& attributes, Communicator* world);

// Every rank's results of each run: ranks are threads, with a GPU each and NCCL between them in the second.
std::vector<HeadResult> RunHeads(const HeadProblem& problem, const HeadRun& run);
std::vector<std::vector<HeadResult>> RunHeadsOnGpus(const HeadProblem& problem, const std::vector<HeadRun>& runs, DType activations);

void ExpectSameBits(const std::vector<HeadResult>& got, const std::vector<HeadResult>& want, const std::string& what);
// Each rank's results against the float64 reference on its own tokens and the whole weight.
void ExpectReference(const HeadProblem& problem, const std::vector<HeadResult>& got, DType activations, double loss_tolerance,
                     double gradient_tolerance);

}  // namespace weir
