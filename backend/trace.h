#pragma once
#include <string>
#include <vector>

#include "graph/graph.h"

namespace weir {

// One launch on its queue, seconds from an arbitrary start.
struct TraceSpan {
  const Node* node = nullptr;
  double start = 0, end = 0;
};

// Trace Event Format, for Perfetto or chrome://tracing: one lane per phase, arguments source and shapes.
std::string TraceJson(const std::vector<TraceSpan>& spans);
// Time per op, longest first: count, milliseconds, share of the whole, and what lies between launches.
std::string TraceTable(const std::vector<TraceSpan>& spans);

}  // namespace weir
