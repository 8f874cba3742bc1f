#include "optim/checkpoint_shards.h"

#include <algorithm>

#include "graph/layout.h"
#include "graph/parameter.h"

namespace weir {
namespace {

constexpr int64_t kDividedElements = 1 << 16;  // fewer are not worth a piece on each rank

// Of `rows` that all holders have, those of this one.
Share ShareOfHolder(int64_t rows, int64_t elements, const Holders& holders, int64_t turn) {
  if (elements >= kDividedElements && rows >= holders.count) return ShareOf(rows, holders.count, holders.index);
  return {.begin = 0, .end = turn % holders.count == holders.index ? rows : 0};
}

}  // namespace

int64_t RowsOf(const Value& parameter) {
  const Dims dims = WholeDims(parameter);
  return dims.empty() ? 1 : dims[0];
}

int64_t RowElementsOf(const Value& parameter) { return NumElements(WholeDims(parameter)) / RowsOf(parameter); }

std::vector<SavedRows> RowsToSave(const std::vector<const Value*>& parameters, const std::function<Holders(const Value&)>& holders_of) {
  std::vector<SavedRows> saved;
  int64_t turn = 0;
  for (const Value* parameter : parameters) {
    const int64_t held = NumElements(ToDims(parameter->shape)), row = RowElementsOf(*parameter);
    const auto& shard = parameter->parameter->shard;
    const Share share = ShareOfHolder(held / row, held, holders_of(*parameter), turn++);
    if (share.size() == 0) continue;
    for (const char kind : {'m', 'v', 'w'}) {
      saved.push_back({.parameter = parameter, .kind = kind, .first = (shard ? shard->first : 0) + share.begin, .rows = share.size(),
                       .row_elements = row, .held_first = share.begin * row});
    }
  }
  std::ranges::sort(saved, {}, &SavedRows::name);
  return saved;
}

int64_t SavedBytes(const std::vector<SavedRows>& rows) {
  int64_t bytes = 0;
  for (const SavedRows& r : rows) bytes += BytesOf(DType::kFloat32, r.elements());
  return bytes;
}

}  // namespace weir
