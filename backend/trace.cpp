#include "backend/trace.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "backend/lane_trace.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

constexpr std::array kPhases = {"begin", "forward", "backward", "norm", "update"};
const char* PhaseName(const Node& node) { return kPhases[static_cast<size_t>(node.phase)]; }

std::string Shapes(const Node& node) {
  std::string text;
  for (const Value* input : node.inputs) {
    if (input == nullptr) continue;
    text += (text.empty() ? "" : " ") + std::string(DTypeName(input->dtype)) + ToString(input->shape);
  }
  return text;
}

std::string Row(const std::string& name, int64_t count, double seconds, double total) {
  char line[160];
  std::snprintf(line, sizeof(line), "  %-32s %6lld  %10.3f ms  %5.1f %%\n", name.c_str(), static_cast<long long>(count),
                seconds * 1e3, total > 0 ? 100 * seconds / total : 0.0);
  return line;
}

}  // namespace

std::string TraceJson(const std::vector<TraceSpan>& spans) { return TraceJson(spans, {}); }

std::string TraceJson(const std::vector<TraceSpan>& spans, const std::vector<LaneSpan>& lanes) {
  auto events = nlohmann::json::array();
  const double start = spans.empty() ? 0 : spans.front().start;
  const auto name = [&](size_t row, const std::string& of) {
    events.push_back({{"ph", "M"}, {"pid", 0}, {"tid", row}, {"name", "thread_name"}, {"args", {{"name", of}}}});
  };
  for (size_t phase = 0; phase < kPhases.size(); ++phase) name(phase, kPhases[phase]);
  std::map<std::string, size_t> rows;
  for (const LaneSpan& span : lanes) {
    const auto [row, added] = rows.try_emplace(span.lane, kPhases.size() + rows.size());
    if (added) name(row->second, span.lane);
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", row->second},
                      {"name", span.node == nullptr ? span.lane : span.node->op()},
                      {"ts", span.start * 1e6},
                      {"dur", (span.end - span.start) * 1e6},
                      {"args", {{"source", span.node == nullptr ? "" : span.node->source}}}});
  }
  for (const TraceSpan& span : spans) {
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", static_cast<int>(span.node->phase)},
                      {"name", span.node->op()},
                      {"ts", (span.start - start) * 1e6},
                      {"dur", (span.end - span.start) * 1e6},
                      {"args", {{"source", span.node->source}, {"inputs", Shapes(*span.node)}}}});
  }
  return nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

namespace {

struct Sum {
  int64_t count = 0;
  double seconds = 0;
};

}  // namespace

std::string LaneTable(const std::vector<TraceSpan>& spans, const std::vector<LaneSpan>& lanes) {
  std::map<std::string, Sum> sums;
  for (const LaneSpan& span : lanes) {
    Sum& sum = sums[span.lane + (span.node == nullptr ? "" : " " + span.node->op())];
    ++sum.count;
    sum.seconds += span.end - span.start;
  }
  double end = spans.empty() ? 0 : spans.front().start;
  for (const TraceSpan& span : spans) end = std::max(end, span.end);
  std::string text;
  for (const auto& [name, sum] : sums) text += Row(name, sum.count, sum.seconds, spans.empty() ? 0 : end - spans.front().start);
  return text.empty() ? "" : "beside them, some at the same time:\n" + text;
}

std::string TraceTable(const std::vector<TraceSpan>& spans) {
  std::map<std::string, Sum> ops;
  double busy = 0, end = spans.empty() ? 0 : spans.front().end;
  for (const TraceSpan& span : spans) {
    Sum& sum = ops[std::string(PhaseName(*span.node)) + " " + span.node->op()];
    ++sum.count;
    sum.seconds += span.end - span.start;
    busy += span.end - span.start;
    end = std::max(end, span.end);
  }
  const double total = spans.empty() ? 0 : end - spans.front().start;
  std::vector<std::pair<std::string, Sum>> rows(ops.begin(), ops.end());
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::string text;
  for (const auto& [name, sum] : rows) text += Row(name, sum.count, sum.seconds, total);
  return text + Row("between launches", static_cast<int64_t>(spans.size()), total - busy, total) +
         Row("traced", static_cast<int64_t>(spans.size()), total, total);
}

}  // namespace weir
