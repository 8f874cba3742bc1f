#include "backend/memory.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "graph/error.h"
#include "graph/op_schema.h"

namespace weir {
namespace {

struct HostSlots {
  std::vector<size_t> inputs, outputs;
};

const HostSlots* SlotsOf(const Node& node) {
  static const std::unordered_map<std::string_view, HostSlots> table = {
      {"StashStart", {{}, {0}}},
      {"StashWait", {{1}, {0}}},
      {"FetchStart", {{0}, {}}},
      {"FetchWait", {{1}, {}}},
      {"PrefetchState", {{0, 1, 2}, {}}},
      {"OffloadStreamAdamW", {{2, 3, 7, 9, 10, 11}, {1, 2, 3}}},
  };
  const auto it = node.schema->domain == "ai.weir" ? table.find(node.op()) : table.end();
  return it == table.end() ? nullptr : &it->second;
}

bool Holds(const std::vector<size_t>& slots, size_t i) {
  return std::find(slots.begin(), slots.end(), i) != slots.end();
}

}  // namespace

std::string_view MemoryName(Memory memory) { return memory == Memory::kDevice ? "device" : "host"; }

bool IsHostInput(const Node& node, size_t i) {
  const HostSlots* slots = SlotsOf(node);
  return slots != nullptr && Holds(slots->inputs, i);
}

bool IsHostOutput(const Node& node, size_t i) {
  const HostSlots* slots = SlotsOf(node);
  return slots != nullptr && Holds(slots->outputs, i);
}

Memory MemoryOf(const Value& value) {
  const bool made = value.producer != nullptr;
  bool host = made && IsHostOutput(*value.producer, static_cast<size_t>(value.producer_index));
  if (!made && !value.uses.empty()) host = IsHostInput(*value.uses[0].node, static_cast<size_t>(value.uses[0].index));
  for (const Use& use : value.uses) {
    WEIR_CHECK(IsHostInput(*use.node, static_cast<size_t>(use.index)) == host, ErrorCode::kInternal, "'", value.name,
               "' is in ", host ? "host" : "device", " memory, but ", use.node->op(), " input ", use.index,
               " reads the other; copy it with Stash or Fetch nodes");
  }
  return host ? Memory::kHost : Memory::kDevice;
}

}  // namespace weir
