#include "optim/checkpoint_shards.h"

#include <algorithm>

#include "backend/arena_layout.h"
#include "graph/parameter.h"

namespace weir {
namespace {

constexpr int64_t kChunksBytes = int64_t{64} << 20;
constexpr int64_t kPieceElements = 4096;  // a smaller piece is not worth its place in the index

// Ranks that hold the same values, and which of them this one is.
struct Holders {
  int64_t count = 1, index = 0;
};

Holders HoldersOf(const Value& parameter, const Layout& layout, int64_t rank) {
  const ParameterInfo& info = *parameter.parameter;
  if (info.shard && info.shared_by == "world") return {};  // shard_optimizer: each rank its own rows
  const auto members = layout.Members(info.shared_by, rank);
  return {.count = std::ssize(members), .index = std::ranges::find(members, rank) - members.begin()};
}

// Of `rows` that all holders have, those of this one.
Share ShareOfHolder(int64_t rows, int64_t elements, const Holders& holders, int64_t turn) {
  if (elements >= kPieceElements * holders.count && rows >= holders.count) return ShareOf(rows, holders.count, holders.index);
  return {.begin = 0, .end = turn % holders.count == holders.index ? rows : 0};
}

}  // namespace

// Named by where the ranks that hold the same shard are.
const char* ShardGroupOf(const Value& parameter) {
  const std::string& shared_by = parameter.parameter->shared_by;
  return shared_by == "replica" ? "expert" : shared_by == "vocabulary_replica" ? "vocabulary" : "world";
}

int64_t RowsOf(const Value& parameter) {
  const Dims dims = WholeDims(parameter);
  return dims.empty() ? 1 : dims[0];
}

int64_t RowElementsOf(const Value& parameter) { return NumElements(WholeDims(parameter)) / RowsOf(parameter); }

std::vector<SavedRows> RowsToSave(const std::vector<const Value*>& parameters, const Layout& layout, int64_t rank) {
  std::vector<SavedRows> saved;
  int64_t turn = 0;
  for (const Value* parameter : parameters) {
    const int64_t held = NumElements(ToDims(parameter->shape)), row = RowElementsOf(*parameter);
    const auto& shard = parameter->parameter->shard;
    const Share share = ShareOfHolder(held / row, held, HoldersOf(*parameter, layout, rank), turn++);
    if (share.size() == 0) continue;
    for (const char kind : {'m', 'v', 'w'}) {
      saved.push_back({.parameter = parameter, .kind = kind, .first = (shard ? shard->first : 0) + share.begin, .rows = share.size(),
                       .row_elements = row, .held_first = share.begin * row});
    }
  }
  std::ranges::sort(saved, {}, &SavedRows::name);
  return saved;
}

int64_t StagingBytes(Staging staging, const Graph& graph, const Layout& layout, int64_t rank) {
  if (staging == Staging::kNone) return 0;
  const auto parameters = graph.ValuesWithRole(Role::kParameter);
  int64_t bytes = 0;
  for (const SavedRows& rows : RowsToSave({parameters.begin(), parameters.end()}, layout, rank)) bytes += BytesOf(DType::kFloat32, rows.elements());
  return staging == Staging::kSnapshot ? bytes : std::min(bytes, kChunksBytes);
}

const Value* ReserveStaging(Graph& graph, Plan& plan, int64_t bytes) {
  if (bytes == 0) return nullptr;
  Value* value = graph.AddValue("checkpoint staging", Role::kInput);
  value->dtype = DType::kUInt8;
  value->shape = {bytes};
  value->has_shape = true;
  ReserveHost(plan, *value, "checkpoints");
  return value;
}

}  // namespace weir
