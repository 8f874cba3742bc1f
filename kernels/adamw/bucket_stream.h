#pragma once
#include <algorithm>

#include "backend/device.h"
#include "graph/attributes.h"
#include "graph/shape.h"

namespace weir {

// Whether a node's parameter is a master in two halves.
inline bool IsSplit(const Node& node) { return node.in(7) != nullptr; }

// Where the parts of one parameter's state begin: in host memory, or in a slot. `low` only of split masters.
struct StateParts {
  float *m, *v;
  uint16_t* low;
};
inline StateParts StateOf(const KernelContext& c) {
  return {c.outputs[1].data<float>(), c.outputs[2].data<float>(), IsSplit(c.node) ? c.outputs[3].data<uint16_t>() : nullptr};
}

// How one parameter's state passes through the device: `count` elements in buckets, each in one of `slots`
// places that hold m, v and, of split masters, the low halves behind each other.
struct Buckets {
  int64_t count, bucket, slots;
  bool split;

  Buckets(const Attributes& attributes, int64_t elements, bool is_split) : count(elements), split(is_split) {
    bucket = std::clamp<int64_t>(attributes.Int("bucket", elements), 1, std::max<int64_t>(elements, 1));
    slots = std::clamp<int64_t>(attributes.Int("slots", 2), 1, std::max<int64_t>(buckets(), 1));
  }
  explicit Buckets(const Node& node) : Buckets(node.attributes, NumElements(ToDims(node.in(1)->shape)), IsSplit(node)) {}
  int64_t buckets() const { return DivCeil(count, bucket); }
  // Slots begin where packs of 16 bytes may.
  int64_t slot_bytes() const { return DivCeil(bucket * (split ? 10 : 8), 16) * 16; }
  int64_t staging_bytes() const { return count == 0 ? 0 : slots * slot_bytes(); }
};

inline int64_t BucketWorkspace(const Node& node) { return Buckets(node).staging_bytes(); }

// Calls update(offset, count, state) for every bucket in order, with its state in `staging`; what update
// leaves there goes back to the host. Later buckets come in and earlier ones go out meanwhile; a slot is
// filled again only after its write-back. Work enqueued afterwards finds all state on the host.
template <class Update>
void StreamBuckets(CopyEngine& copies, const Buckets& b, const StateParts& host, std::byte* staging, Update update) {
  using Direction = CopyEngine::Direction;
  constexpr int64_t kFirstEvent = int64_t{1} << 40;  // apart from the graph's own events
  const int64_t last = b.buckets();
  const auto slot = [&](int64_t i) {
    auto* m = reinterpret_cast<float*>(staging + i % b.slots * b.slot_bytes());
    return StateParts{m, m + b.bucket, reinterpret_cast<uint16_t*>(m + 2 * b.bucket)};
  };
  const auto length = [&](int64_t i) { return std::min(b.bucket, b.count - i * b.bucket); };
  const auto fetched = [&](int64_t i) { return kFirstEvent + 2 * (i % b.slots); };
  const auto stored = [&](int64_t i) { return fetched(i) + 1; };
  const auto move = [&](int64_t i, Direction direction, auto* device, auto* home, int64_t event) {
    auto *d = reinterpret_cast<std::byte*>(device), *h = reinterpret_cast<std::byte*>(home + i * b.bucket);
    const bool out = direction == Direction::kToHost;
    copies.Start(event, direction, out ? h : d, out ? d : h, length(i) * static_cast<int64_t>(sizeof(*device)));
  };
  const auto move_all = [&](int64_t i, Direction direction, int64_t event) {
    const StateParts device = slot(i);
    move(i, direction, device.m, host.m, event);
    move(i, direction, device.v, host.v, event);
    if (b.split) move(i, direction, device.low, host.low, event);
  };
  const auto fetch = [&](int64_t i) { move_all(i, Direction::kToDevice, fetched(i)); };
  for (int64_t i = 0; i < std::min(b.slots, last); ++i) fetch(i);
  for (int64_t i = 0; i < last; ++i) {
    if (i > 0 && i - 1 + b.slots < last) {  // the slot that the bucket before leaves
      copies.Order(Direction::kToDevice, stored(i - 1));
      fetch(i - 1 + b.slots);
    }
    copies.Wait(fetched(i));
    update(i * b.bucket, length(i), slot(i));
    move_all(i, Direction::kToHost, stored(i));
  }
  if (last > 0) copies.Wait(stored(last - 1));  // write-backs end in order
}

}  // namespace weir
