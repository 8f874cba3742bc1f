#include "optim/expert_loads.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace weir {
namespace {

double MaxOverMean(const std::vector<int64_t>& routes) {
  const int64_t all = std::accumulate(routes.begin(), routes.end(), int64_t{0});
  if (all == 0) return 0;
  return static_cast<double>(std::ranges::max(routes)) * static_cast<double>(routes.size()) / static_cast<double>(all);
}

// Chunks, helpers and routes of each layer, one behind the other.
std::vector<int64_t> Flat(const std::vector<ExpertLoad>& layers) {
  std::vector<int64_t> flat;
  for (const ExpertLoad& layer : layers) {
    flat.push_back(layer.chunks);
    flat.push_back(layer.helpers);
    flat.insert(flat.end(), layer.routes.begin(), layer.routes.end());
  }
  return flat;
}

}  // namespace

std::vector<LayerLoad> LoadsOfAllRanks(const std::vector<ExpertLoad>& own, Communicator* world) {
  const std::vector<int64_t> mine = Flat(own);
  std::vector<int64_t> all = mine;
  const size_t ranks = world == nullptr ? 1 : static_cast<size_t>(world->size());
  if (world != nullptr) {
    all.resize(mine.size() * ranks);
    world->AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), {"LoadsOfAllRanks", "routes"});
  }
  std::vector<LayerLoad> loads(own.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    auto at = all.begin() + static_cast<std::ptrdiff_t>(rank * mine.size());
    for (size_t layer = 0; layer < own.size(); ++layer) {
      LayerLoad& load = loads[layer];
      load.chunks = std::max(load.chunks, *at++);
      load.helpers = std::max(load.helpers, *at++);
      load.routes.resize(own[layer].routes.size());
      for (int64_t& routes : load.routes) routes += *at++;
    }
  }
  for (LayerLoad& load : loads) load.max_over_mean = MaxOverMean(load.routes);
  return loads;
}

RankSplits SplitsOfAllRanks(const StepSplit& own, Communicator* world) {
  if (world == nullptr) return {own, own};
  const auto splits = world->GatherValues(own, {"SplitsOfAllRanks", "seconds"});
  RankSplits over;
  for (size_t part = 0; part < kStepPartNames.size(); ++part) {
    for (const StepSplit& split : splits) {
      over.mean.at(part) += split.at(part) / static_cast<float>(splits.size());
      over.longest.at(part) = std::max(over.longest.at(part), split.at(part));
    }
  }
  return over;
}

}  // namespace weir
