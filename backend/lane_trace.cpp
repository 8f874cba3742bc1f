#include "backend/lane_trace.h"

namespace weir {
namespace {

struct Lanes {
  bool traced = false;
  const Node* node = nullptr;
  struct Pending {
    const char* lane;
    const Node* node;
    std::function<std::pair<double, double>()> times;
  };
  std::vector<Pending> pending;
  std::vector<LaneSpan> spans;
};

Lanes& Own() {
  static thread_local Lanes lanes;
  return lanes;
}

}  // namespace

void StartLanes() { Own() = {.traced = true, .node = nullptr, .pending = {}, .spans = {}}; }

void StopLanes() {
  Lanes& lanes = Own();
  lanes.traced = false;
  for (const auto& [lane, node, times] : lanes.pending) {
    const auto [start, end] = times();
    lanes.spans.push_back({lane, node, start, end});
  }
  lanes.pending.clear();
}

std::vector<LaneSpan> TakeLanes() { return std::exchange(Own().spans, {}); }

bool LanesAreTraced() { return Own().traced; }

void AddLaneSpan(const char* lane, std::function<std::pair<double, double>()> times) {
  Own().pending.push_back({lane, Own().node, std::move(times)});
}

void SetLaneNode(const Node& node) { Own().node = &node; }

}  // namespace weir
