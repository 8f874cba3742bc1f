#pragma once
#include <cstdint>
#include <vector>

#include "backend/communicator.h"
#include "backend/step_split.h"

namespace weir {

// One routed layer in one step, over all ranks and micro-batches. Chunks and helpers: of the launch that had most.
struct LayerLoad {
  double max_over_mean = 0;  // of the routes per expert; 1 = all experts have the same
  int64_t chunks = 0, helpers = 0;
  std::vector<int64_t> routes = {};  // of each expert
};

// Collective; the same on every rank.
std::vector<LayerLoad> LoadsOfAllRanks(const std::vector<ExpertLoad>& own, Communicator* world);

// A step's split over the ranks: the mean of each part, and the longest of each.
struct RankSplits {
  StepSplit mean, longest;
};
RankSplits SplitsOfAllRanks(const StepSplit& own, Communicator* world);

}  // namespace weir
