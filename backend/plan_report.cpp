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

// "  weights 4.0  attention 2.0", in the ledger's order.
std::string Terms(const std::map<std::string, int64_t>& ledger, const Unit& unit) {
  std::string text = " ";
  for (const char* term : LedgerTerms()) {
    const auto entry = ledger.find(term);
    if (entry != ledger.end() && entry->second > 0) text += StrCat(" ", term, " ", Amount(entry->second, unit), " ");
  }
  return text;
}

std::vector<const PlannedBuffer*> LargestAt(const Plan& plan, Memory memory, int step) {
  std::vector<const PlannedBuffer*> live;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.memory == memory && buffer.first_step <= step && step <= buffer.last_step) live.push_back(&buffer);
  }
  std::stable_sort(live.begin(), live.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  return live;
}

std::string MemoryTable(const Plan& plan, Memory memory) {
  const bool host = memory == Memory::kHost;
  const int64_t arena = host ? plan.host_arena_bytes : plan.arena_bytes;
  const Unit unit = UnitFor(arena);
  int64_t separate = 0, count = 0;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.memory == memory) separate += Aligned(buffer.bytes), ++count;
  }
  std::string text = StrCat(host ? "host arena " : "arena ", Amount(arena, unit), " ", unit.name, " for ", count,
                            " buffers of ", Amount(separate, unit), " ", unit.name, " in ", plan.steps.size(), " steps\n",
                            Terms(host ? plan.host_ledger : plan.ledger, unit));
  const int fullest = FullestStep(plan, memory);
  const auto live = LargestAt(plan, memory, fullest);
  text += StrCat("\nfullest at step ", fullest, "; largest buffers then:\n");
  for (size_t i = 0; i < std::min(live.size(), kListedBuffers); ++i) {
    char line[64];
    std::snprintf(line, sizeof(line), "  %10s %s  %-12s ", Amount(live[i]->bytes, unit).c_str(), unit.name,
                  live[i]->term.c_str());
    text += line + live[i]->name + "\n";
  }
  return text;
}

}  // namespace

std::string PlanTable(const Plan& plan) {
  const std::string device = MemoryTable(plan, Memory::kDevice);
  return plan.host_arena_bytes == 0 ? device : device + MemoryTable(plan, Memory::kHost);
}

}  // namespace weir
