#include <algorithm>
#include <cstdio>

#include "backend/arena_layout.h"
#include "graph/error.h"

namespace weir {
namespace {

constexpr size_t kListedBuffers = 10;

struct Unit {
  const char* name;
  double bytes;
};

Unit UnitFor(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return {"GiB", 1073741824.0};
  if (bytes >= int64_t{1} << 20) return {"MiB", 1048576.0};
  return {"KiB", 1024.0};
}

std::string Amount(int64_t bytes, const Unit& unit) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(bytes) / unit.bytes);
  return text;
}

}  // namespace

std::string PlanTable(const Plan& plan) {
  const Unit unit = UnitFor(plan.arena_bytes);
  int64_t separate = 0;
  for (const PlannedBuffer& buffer : plan.buffers) separate += Aligned(buffer.bytes);
  std::string text = StrCat("arena ", Amount(plan.arena_bytes, unit), " ", unit.name, " for ", plan.buffers.size(),
                            " buffers of ", Amount(separate, unit), " ", unit.name, " in ", plan.steps.size(),
                            " steps\n ");
  std::vector<std::pair<int64_t, std::string>> terms;
  for (const auto& [term, bytes] : plan.ledger) terms.emplace_back(bytes, term);
  std::stable_sort(terms.begin(), terms.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [bytes, term] : terms) {
    if (bytes > 0) text += StrCat(" ", term, " ", Amount(bytes, unit), " ");
  }
  const int fullest = FullestStep(plan);
  std::vector<const PlannedBuffer*> live;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.first_step <= fullest && fullest <= buffer.last_step) live.push_back(&buffer);
  }
  std::stable_sort(live.begin(), live.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  text += StrCat("\nfullest at step ", fullest, "; largest buffers then:\n");
  for (size_t i = 0; i < std::min(live.size(), kListedBuffers); ++i) {
    char line[64];
    std::snprintf(line, sizeof(line), "  %10s %s  %-12s ", Amount(live[i]->bytes, unit).c_str(), unit.name,
                  live[i]->term.c_str());
    text += line + live[i]->name + "\n";
  }
  return text;
}

}  // namespace weir
