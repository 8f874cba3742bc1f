#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend/trace.h"

namespace weir {

// Copies and transfers beside the compute queue, in seconds from the start of the trace's launches.
struct LaneSpan {
  std::string lane;  // "to host", "to device", "between GPUs"
  const Node* node = nullptr;  // that started it
  double start = 0, end = 0;
};

// Of the calling thread, which launches: what runs between the two calls. The executor makes them with its own trace.
void StartLanes();
void StopLanes();  // after all work was waited for
std::vector<LaneSpan> TakeLanes();

// For those who copy: whether a trace runs, and one more span of it. `times` is called by StopLanes.
bool LanesAreTraced();
void AddLaneSpan(const char* lane, std::function<std::pair<double, double>()> times);
// The node that is launched from now on.
void SetLaneNode(const Node& node);

std::string TraceJson(const std::vector<TraceSpan>& spans, const std::vector<LaneSpan>& lanes);
// As text for people: spans, milliseconds under way and their share of the launches' time, by lane and op.
std::string LaneTable(const std::vector<TraceSpan>& spans, const std::vector<LaneSpan>& lanes);

}  // namespace weir
